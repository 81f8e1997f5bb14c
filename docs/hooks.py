"""mkdocs hook: a line `<!-- include: README.md performance -->` in a page becomes that part of the file.

A part stands between `<!-- performance: begin -->` and `<!-- performance: end -->`. Its links are relative to
the repository's root and point into the repository afterwards.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
INCLUDE = re.compile(r"^<!-- include: (?P<file>\S+) (?P<part>\S+) -->$", re.MULTILINE)
LINK = re.compile(r'(?P<before>\]\(|\bsrc(?:set)?=")(?P<target>(?!https?:|#)[^)"\s]+)')


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page, before it is rendered."""
    return INCLUDE.sub(lambda found: part(found["file"], found["part"], config["repo_url"]), markdown)


def part(file: str, name: str, repo_url: str) -> str:
    """The part of a file of the repository, with links that work anywhere.

    Raises:
        ValueError: the file has no such part.
    """
    text = (ROOT / file).read_text()
    found = re.search(rf"<!-- {name}: begin -->\n(.*?)<!-- {name}: end -->", text, re.DOTALL)
    if found is None:
        raise ValueError(f"{file} has no part {name!r}")
    return LINK.sub(lambda link: f"{link['before']}{_in_repository(link['target'], repo_url)}", found[1])


def _in_repository(target: str, repo_url: str) -> str:
    is_image = target.endswith((".png", ".svg"))
    return f"{repo_url}/{'raw' if is_image else 'blob'}/main/{target}"
