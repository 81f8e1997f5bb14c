"""`python -m zarr_dali` is the command `zarr-dali`."""

from zarr_dali.cli import main

main(prog_name="zarr-dali")
