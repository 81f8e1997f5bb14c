"""A native Zarr reader for NVIDIA DALI.

Importing this package loads the plugin: afterwards `nvidia.dali.fn.readers.zarr` exists, with the alias
`nvidia.dali.fn.zarr_reader`, as do the operator classes in `nvidia.dali.ops` and in dynamic mode. Importing
needs neither a GPU nor its driver, nor nvCOMP; those are looked for when a pipeline needs them.

`info` says beforehand how a store would be read, `select` turns labels of coordinates into arguments of the
reader, `ome_zarr` does so with a level of OME-Zarr images, `Loader` gives batches of torch tensors without a
pipeline to write, `stats` counts what a reader has done, `statistics` computes what a reader normalizes with,
`rechunk` copies a store into chunks that fit what is read, `open_store` lends stores to xarray, and
`example_store` and `example_plate` write small ones to try things with.

Raises ImportError when DALI is missing, when it is another release than the library was built for, or when
another copy of the plugin is loaded already.
"""

from zarr_dali import _fork, _plugin, readers
from zarr_dali._description import Advice, ArrayReport, Chosen, GpuMemory, Output, Reading
from zarr_dali._example import example_store
from zarr_dali._example_plate import example_plate
from zarr_dali._info import Info, info
from zarr_dali._loader import Loader
from zarr_dali._ome import Axis
from zarr_dali._ome_store import ome_zarr
from zarr_dali._opening import open_store
from zarr_dali._plugin import VERSION as __version__
from zarr_dali._plugin import library_path
from zarr_dali._rechunk import Rechunked, rechunk
from zarr_dali._select import select
from zarr_dali._statistics import statistics
from zarr_dali._stats import stats

__all__ = [
    "Advice",
    "ArrayReport",
    "Axis",
    "Chosen",
    "GpuMemory",
    "Info",
    "Loader",
    "Output",
    "Reading",
    "Rechunked",
    "__version__",
    "example_plate",
    "example_store",
    "info",
    "library_path",
    "ome_zarr",
    "open_store",
    "readers",
    "rechunk",
    "select",
    "statistics",
    "stats",
]

_plugin.load()
_fork.install()
