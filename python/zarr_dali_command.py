"""Starts the command `zarr-dali` without importing the package `zarr_dali` first.

The package loads the plugin, which fails where DALI is missing or another release. `zarr-dali --help`,
`--version` and `doctor` work there too, so that the package is only run when a command asks for something of
it.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

PACKAGE = "zarr_dali"


def main() -> None:
    """The command. What keeps the plugin from being loaded is one line."""
    if PACKAGE not in sys.modules:
        _put_off()
    try:
        from zarr_dali.cli import main as run

        run(prog_name="zarr-dali")
    except ImportError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _put_off() -> None:
    """Puts the package in its place without running it; the first of its names that is asked for does that.

    Modules inside it can be imported before.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.loader is None:
        raise ImportError(
            f"there is no package {PACKAGE}: install zarr-dali again with `pip install --force-reinstall "
            "--no-deps SOURCE`, where SOURCE is what it was installed from (zarr-dali, a wheel or a folder)"
        )
    package = importlib.util.module_from_spec(spec)

    def run_then_get(name: str) -> Any:
        if name.startswith("_") and name != "__version__":
            raise AttributeError(name)
        del package.__getattr__
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = run_then_get
    sys.modules[PACKAGE] = package


if __name__ == "__main__":
    main()
