"""Prints what pip has to install for the given extras of pyproject.toml, one requirement a line.

    python python/requirements.py build test > requirements.txt

That is: the build backend, the runtime dependencies and the extras, but not the package itself, which needs
them to be built. pip cannot be asked for that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; every pip that supports it brings a copy
    from pip._vendor import tomli as tomllib


def requirements(extras: list[str]) -> Iterator[str]:
    """The requirements, with references to other extras of the package replaced by what those list."""
    pyproject = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    project = pyproject["project"]
    yield from pyproject["build-system"]["requires"]
    yield from project["dependencies"]
    optional = project["optional-dependencies"]

    def expand(extra: str) -> Iterator[str]:
        for requirement in optional[extra]:
            own = re.fullmatch(rf"{project['name']}\[([\w-]+)\]", requirement)
            yield from expand(own[1]) if own else [requirement]

    for extra in extras:
        yield from expand(extra)


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
