"""`make release`: version, changelog, commit and tag, in a repository made for it; the builds are stubs."""

import importlib.util
import os
import subprocess
from datetime import date
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("release", Path(__file__).parents[2] / "python/release.py")
release = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(release)

MANIFEST = '[workspace]\nmembers = []\n\n[workspace.package]\nversion = "0.1.0"\nedition = "2024"\n'
CHANGELOG = "# Changelog\n\n## Unreleased\n\n- A line.\n\n## 0.0.1 - 2026-01-01\n\n- The first.\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository, and stubs of `make` and `cargo` that note their arguments and fail as FAIL says."""
    root, programs = tmp_path / "checkout", tmp_path / "bin"
    for folder in (root, programs):
        folder.mkdir()
    for name, text in {"Cargo.toml": MANIFEST, "CHANGELOG.md": CHANGELOG, "Cargo.lock": "\n"}.items():
        (root / name).write_text(text)
    for name in ("make", "cargo"):
        script = f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/called\n[ "$FAIL" != {name} ]\n'
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "somebody@example.org")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "start")
    return root


def git(root, *words):
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


def test_release(checkout, tmp_path):
    release.main(checkout, "0.2.0")
    assert 'version = "0.2.0"' in (checkout / "Cargo.toml").read_text()
    heading = f"## Unreleased\n\n## 0.2.0 - {date.today()}\n\n- A line.\n\n## 0.0.1"
    assert heading in (checkout / "CHANGELOG.md").read_text()
    assert git(checkout, "log", "--format=%s", "-1").strip() == "Release 0.2.0"
    assert git(checkout, "tag", "--points-at", "HEAD").strip() == "v0.2.0"
    assert git(checkout, "status", "--porcelain") == ""
    called = (tmp_path / "called").read_text().splitlines()
    assert called[0] == "cargo update --workspace --offline --quiet"
    assert called[1].startswith("make wheels-test DALI=2.4.0 CUDA=13 PYTHONS=")


@pytest.mark.parametrize("failing", ["make", "cargo"])
def test_a_step_fails(checkout, monkeypatch, failing):
    monkeypatch.setenv("FAIL", failing)
    with pytest.raises(release.Refused, match=failing):
        release.main(checkout, "0.2.0")
    assert git(checkout, "status", "--porcelain") == "" and git(checkout, "tag") == ""


@pytest.mark.parametrize(
    "version, change, words",
    [
        ("0.2", None, "is no version"),
        ("", None, "is no version"),
        ("0.0.9", None, "older than 0.1.0"),
        ("0.2.0", "CHANGELOG.md", "not committed"),
        ("0.2.0", "tag", "v0.2.0 is there already"),
        ("0.2.0", "nothing", "nothing under Unreleased"),
    ],
)
def test_refused(checkout, version, change, words):
    if change == "tag":
        git(checkout, "tag", "v0.2.0")
    elif change == "nothing":
        (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace("- A line.\n", ""))
        git(checkout, "commit", "--quiet", "-am", "nothing")
    elif change:
        (checkout / change).write_text("changed")
    with pytest.raises(release.Refused, match=words):
        release.main(checkout, version)
    assert git(checkout, "log", "--format=%s", "-1").strip() != "Release 0.2.0"
