"""What a report of Nsight Systems says of a training and its reader: `zarr-dali profile REPORT.sqlite`.

`recording` reads the tables of the exported report, `findings` says of them what waited for what and how much
of the reader's work was hidden behind the model, `text` and `picture` show it. None needs DALI or a GPU.
"""
