"""The programs of `tests/kernels`, which run kernels on the host under sanitizers."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Wide accesses to bytes are meant: UBSan checks that they are aligned.
FLAGS = (
    "-std=c++17 -O1 -g -Wall -Wextra -Werror -Wno-unknown-pragmas -fno-strict-aliasing -pthread "
    "-fsanitize=address,undefined -fno-sanitize-recover=all"
)


def compiled(name, folder):
    """`tests/kernels/<name>.cc` as a program in a folder; what is there already is taken."""
    if not (compiler := shutil.which("g++")):
        pytest.skip("g++ is not installed")
    program = folder / name
    if not program.exists():
        includes = ["-I", ROOT / "src/kernels", "-I", ROOT / "tests/kernels"]
        source = ROOT / "tests/kernels" / f"{name}.cc"
        subprocess.run([compiler, *FLAGS.split(), *includes, source, "-o", program], check=True, timeout=300)
    return program
