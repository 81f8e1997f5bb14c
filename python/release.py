"""Makes a release: `make release VERSION=x.y.z`.

Writes the version into Cargo.toml and Cargo.lock and heads the changelog's entries with it, builds the
wheel (`make wheels`), tries it alone in a fresh environment (`make wheels-test`), commits and tags. Nothing
is pushed. Files are as they were if a step fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

UNRELEASED = "## Unreleased\n"
VERSION = re.compile(r'(?m)^(\[workspace\.package\]\nversion = ")(\d+\.\d+\.\d+)(")')


class Refused(Exception):
    """Why there can be no release now."""


def main(root: Path, version: str) -> None:
    """Makes the release of a checkout.

    Raises:
        Refused: Something stands in the way.
    """
    manifest, changelog, lock = root / "Cargo.toml", root / "CHANGELOG.md", root / "Cargo.lock"
    before = {file: file.read_text() for file in (manifest, changelog, lock)}
    if _run(root, "git", "status", "--porcelain", "--untracked-files=no"):
        raise Refused("there are changes that are not committed: commit or stash them")
    if _run(root, "git", "tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} is there already")
    try:
        manifest.write_text(with_version(before[manifest], version))
        changelog.write_text(with_heading(before[changelog], version, date.today()))
        _run(root, "cargo", "update", "--workspace", "--offline", "--quiet")
        _run(root, "make", "wheels-test", "DALI=2.4.0", "CUDA=13", f"PYTHONS={sys.executable}",
             f"WHEELS_REPORT={os.devnull}", show=True)  # fmt: skip
        _run(root, "git", "commit", "--quiet", "-m", f"Release {version}", "--", *map(str, before))
    except BaseException:
        for file, text in before.items():
            file.write_text(text)
        raise
    _run(root, "git", "tag", "--annotate", f"v{version}", "-m", f"zarr-dali {version}")
    print(f"{version} is committed and tagged, and its wheel is in dist/wheels; to publish it:")
    print(f"    git push origin HEAD v{version} && twine upload dist/wheels/*.whl")


def with_version(manifest: str, version: str) -> str:
    """The manifest with another version of the workspace.

    Raises:
        Refused: It is no version, or not a later one.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise Refused(f"{version!r} is no version: make release VERSION=x.y.z")
    found = VERSION.search(manifest)
    if found is None:
        raise Refused("Cargo.toml has no version of the workspace")
    # The first release may have the version that is there.
    if tuple(map(int, version.split("."))) < tuple(map(int, found[2].split("."))):
        raise Refused(f"{version} is older than {found[2]}")
    return VERSION.sub(rf"\g<1>{version}\g<3>", manifest)


def with_heading(changelog: str, version: str, day: date) -> str:
    """The changelog with what is unreleased under a heading of its own.

    Raises:
        Refused: There is nothing unreleased.
    """
    _, unreleased, rest = changelog.partition(UNRELEASED)
    if not unreleased or not rest.partition("\n## ")[0].strip():
        raise Refused("CHANGELOG.md has nothing under Unreleased")
    return changelog.replace(UNRELEASED, f"{UNRELEASED}\n## {version} - {day}\n", 1)


def _run(root: Path, *command: str, show: bool = False) -> str:
    done = subprocess.run(command, cwd=root, capture_output=not show, text=True, check=False)
    if done.returncode != 0:
        raise Refused(
            f"`{' '.join(command)}` failed ({done.returncode}) {(done.stderr or '').strip()[-500:]}"
        )
    return done.stdout or ""


if __name__ == "__main__":
    try:
        main(Path(__file__).parents[1], sys.argv[1] if len(sys.argv) > 1 else "")
    except Refused as error:
        sys.exit(f"no release: {error}")
