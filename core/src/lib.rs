//! The core of the wheel: everything but the operator's part that is compiled against DALI's headers.
//!
//! All of it is the crate `zarr_dali`, whose functions for the shim and for Python this library exports. A wheel has one
//! shim for each DALI release beside it (`python/zarr_dali/_shim.py`), because DALI versions its symbols by exact release.

extern crate zarr_dali as _;
