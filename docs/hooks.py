"""mkdocs hook: what pages show of the repository outside of `docs/`.

Pictures of benchmarks become part of the site; links to other files lead to the repository on the web.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "benches/results"
PICTURES = "images/results"
PICTURE = re.compile(r"(?<=\]\()\.\./benches/results/(?P<name>[^)\s/]+\.png)(?=[)\s])")
OUTSIDE = re.compile(r"(?<=\]\()\.\./(?P<target>[^)\s]+)")


def on_files(files: Files, *, config: Any) -> Files:
    """Called by mkdocs when it has found the files of the site."""
    for picture in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"{PICTURES}/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page, before it is rendered."""
    shown = PICTURE.sub(rf"{PICTURES}/\g<name>", markdown)
    return OUTSIDE.sub(rf"{config['repo_url']}/blob/main/\g<target>", shown)
