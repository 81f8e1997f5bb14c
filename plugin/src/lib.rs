//! The plugin in one library, which is what `cargo build` makes for development: the crate `zarr_dali` with the C++ shim for the
//! DALI release of the build's environment. A wheel has core and shims apart (`core/`, `python/zarr_dali/_shim.py`).

extern crate zarr_dali_core as _;
