"""The licences of what is compiled into the plugin: of each crate, and of the C sources that crates bring.

python python/licences.py > THIRD_PARTY_LICENSES.txt
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "THIRD_PARTY_LICENSES.txt"
FILES = re.compile(r"(UN)?LICEN[SC]ES?|COPYING|COPYRIGHT|NOTICE|PATENTS", re.IGNORECASE)
CODE = (".rs", ".c", ".h", ".py", ".toml", ".go", ".sh")
APACHE = "Apache-2.0"
KEPT = Path(__file__).with_name("licence_texts")
"""Texts for crates that are published without those of their licences, by the crate's name."""

HEAD = """\
The library of zarr-dali is under the Apache License 2.0 (LICENSE) and contains the following works. It also
contains Rust's standard library (https://github.com/rust-lang/rust, MIT OR Apache-2.0) and inlined parts of
the headers of NVIDIA DALI (https://github.com/NVIDIA/DALI, Apache-2.0).
"""


def collect(root: Path) -> str:
    """The text for all crates that the library of a checkout is linked from.

    Raises:
        RuntimeError: cargo fails, or a crate has neither a licence file nor one whose text is known.
    """
    texts = [HEAD]
    for crate in crates(root):
        title = (
            f"{crate['name']} {crate['version']}: {crate['license']}, {crate['repository'] or 'crates.io'}"
        )
        texts.append(f"{'=' * 80}\n{title}\n{'=' * 80}\n")
        folder = Path(crate["manifest_path"]).parent
        found = list(_files(folder))
        if (kept := KEPT / f"{crate['name']}.txt").is_file():
            found = [kept]
        if not found and APACHE not in (crate["license"] or ""):
            raise RuntimeError(f"{title}: {folder} has no licence file")
        if not found:
            texts.append("The crate has no licence file; the text of the Apache License 2.0 is in LICENSE.\n")
        for file in found:
            name = file.relative_to(folder) if file.is_relative_to(folder) else file.name
            texts.append(f"--- {name}\n\n{file.read_text(errors='replace').strip()}\n")
    return "\n".join(texts)


def crates(root: Path) -> list[dict[str, Any]]:
    """The packages of other people that are linked in; what only builds or tests need is left out."""
    # What is built for (python/build_hook.py).
    target = os.environ.get("ZARR_DALI_TARGET") or f"{os.uname().machine}-unknown-linux-gnu"
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed: {done.stderr}")
    metadata = json.loads(done.stdout)
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    linked, left = set(), [metadata["resolve"]["root"]]
    while left:
        one = left.pop()
        if one not in linked:
            linked.add(one)
            wanted = (dep for dep in nodes[one]["deps"] if any(not kind["kind"] for kind in dep["dep_kinds"]))
            left += [dep["pkg"] for dep in wanted]
    own = set(metadata["workspace_members"])
    found = [package for package in metadata["packages"] if package["id"] in linked - own]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def _files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*")):
        inside = any(FILES.fullmatch(part) for part in file.relative_to(folder).parts[:-1])
        if file.is_file() and file.suffix not in CODE and (inside or FILES.match(file.name)):
            yield file


if __name__ == "__main__":
    sys.stdout.write(collect(Path(__file__).parents[1]))
