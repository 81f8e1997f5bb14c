"""Regions of `rechunk` and `statistics` as tasks of dask.distributed, where `dask` is given.

What is here knows nothing of stores: `cluster` connects to a scheduler or starts a cluster on this machine,
`spreading` makes tasks of regions and gives what came of them, and `worker` runs them, in as much memory as
is allowed. The journal and all that gives a result its name stay in the process that was called.
"""
