"""What `zarr-dali bench` measures, which `benches/read_table.py` uses as well.

`work` says what is read, `loaders` are the ways to read it (`fn.readers.zarr` and its peers), `timing` checks
and times them, `ceilings` measures what the machine allows, `cache` handles the page cache,
`verdict` says in a sentence what limits, `report` shows and keeps the results, and `command` puts all of it
together. Imported only when it is used: much of it needs packages of the extra "bench".
"""
