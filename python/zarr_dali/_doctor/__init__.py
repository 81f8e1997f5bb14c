"""`zarr-dali doctor`: what this machine is, and what of it stands in the way or costs speed.

`machine` collects facts, `probe` those that a library has to be loaded for (in processes of its own, which
may hang or crash), `findings` judges them, `text` prints. Nothing here imports DALI or the plugin.
"""
