"""mkdocs hook: links to files of the repository outside of `docs/` lead to the repository on the web."""

from __future__ import annotations

import re
from typing import Any

OUTSIDE = re.compile(r"(?<=\]\()\.\./(?P<target>[^)\s]+)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page, before it is rendered."""

    def in_repository(link: re.Match[str]) -> str:
        kind = "raw" if link["target"].endswith((".png", ".svg")) else "blob"
        return f"{config['repo_url']}/{kind}/main/{link['target']}"

    return OUTSIDE.sub(in_repository, markdown)
