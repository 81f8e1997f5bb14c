"""Programs of the repository inside the tests' process: one of their own would import PyTorch for seconds."""

import contextlib
import io
import runpy
import sys
from functools import lru_cache
from pathlib import Path
from unittest import mock

import pytest


@lru_cache
def help_of(script: Path) -> str:
    """What a script prints for `--help`, which has to end it with the exit status 0."""
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [str(script), "--help"]),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path]),
        contextlib.redirect_stdout(printed),
        pytest.raises(SystemExit) as ended,
    ):
        runpy.run_path(str(script), run_name="__main__")
    assert not ended.value.code, printed.getvalue()
    return printed.getvalue()
