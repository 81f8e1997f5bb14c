"""What figures depend on, without anything that names the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    "zarr-dali",
    "nvidia-dali-cuda130",
    "nvidia-libnvcomp-cu13",
    "torch",
    "segmentation-models-pytorch",
    "numpy",
    "zarr",
    "numcodecs",
    "zarrs",
    "tensorstore",
    "cupy-cuda13x",
    "kvikio-cu13",
    "czarr",
)


def machine() -> dict[str, Any]:
    """CPU, cores and GPUs that the process may use, memory and driver."""
    result: dict[str, Any] = {"cpu": platform.machine(), "cores": len(os.sched_getaffinity(0))}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            result["cpu"] = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    result["ram_gb"] = round(pages / 1e9, 1)
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        query.append(f"--id={visible}")
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
        result["gpus"] = [line.split(", ")[0] for line in found.stdout.strip().splitlines()]
        result["driver"] = found.stdout.strip().splitlines()[0].split(", ")[1]
    except (OSError, subprocess.SubprocessError, IndexError):
        result["gpus"] = []
    return result


def versions() -> dict[str, str]:
    """Versions of the packages that take part, as far as they are installed."""
    result = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return result
