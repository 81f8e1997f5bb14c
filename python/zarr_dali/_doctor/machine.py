"""Facts about this machine, each of which may be missing. Nothing here fails."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zarr_dali import _environment

PACKAGES = ("zarr-dali", "nvidia-libnvcomp-cu12", "nvidia-libnvcomp-cu13", "nvidia-cufile", "numpy", "torch")
PACKAGES += ("nvidia-cufile-cu12", "zarr", "xarray", "numcodecs", "zarrs", "click", "rich")
VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "DALI_PRELOAD_PLUGINS", "LD_LIBRARY_PATH")
VARIABLES += ("OMP_NUM_THREADS", "PYTHONPATH", "ZARR_DALI_NVCOMP_LIBRARY")
NVCOMP_RELEASES = (6, 5)
"""Major ones, in the order in which the core looks for them (nvcomp-sys/src/lib.rs)."""
SITE = Path(__file__).parents[2]
PROBE_SECONDS = 120
CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def examine() -> dict[str, Any]:
    """All facts, as dicts, lists, numbers and texts; the home folder is `~`."""
    nvcomp = os.environ.get("ZARR_DALI_NVCOMP_LIBRARY")
    files = [f"libnvcomp.so.{release}" for release in NVCOMP_RELEASES]
    beside = [str(SITE / "nvidia/libnvcomp/lib64" / file) for file in files]
    started = {
        "plugin": _start("plugin"),
        "driver": _start("driver"),
        "nvcomp": _start("library", *([nvcomp] if nvcomp else [*beside, *files])),
        "cufile": _start(
            "library",
            str(SITE / "nvidia/cu13/lib/libcufile.so.0"),
            str(SITE / "nvidia/cufile/lib/libcufile.so.0"),
            "libcufile.so.0",
            "libcufile.so",
        ),
    }
    facts = {
        "system": _system(),
        "packages": _packages(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        **{name: _answer(process) for name, process in started.items()},
    }
    facts["driver"]["release"] = _text("/proc/driver/nvidia/version", _driver_release)
    for gpu in facts["driver"].get("gpus", []):
        _add_place(gpu)
    facts["gds"] = _gds(facts["cufile"])
    facts["cores"] = _cores()
    facts["memory"] = _memory()
    facts["files"] = _files()
    return _without_home(facts)


def _start(*arguments: str) -> subprocess.Popen[str] | OSError:
    command = [sys.executable, str(Path(__file__).with_name("probe.py")), *arguments]
    # The folder of the script would be in front of the packages.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        return error


def _answer(process: subprocess.Popen[str] | OSError) -> dict[str, Any]:
    if isinstance(process, OSError):
        return {"problem": f"no process could be started ({process})"}
    try:
        printed, errors = process.communicate(timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return {"problem": f"no answer within {PROBE_SECONDS} s"}
    try:
        return json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        last = (errors.strip().splitlines() or [""])[-1]
        return {"problem": f"the process ended with status {process.returncode}: {last[:200]}"}


def _system() -> dict[str, Any]:
    try:
        release = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        release = None
    return {
        "system": release or platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "glibc": _environment.glibc(),
        "python": platform.python_version(),
        "container": _container(),
    }


def _container() -> str | None:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if "APPTAINER_NAME" in os.environ or "SINGULARITY_NAME" in os.environ:
        return "apptainer"
    return None


def _packages() -> dict[str, str]:
    found = {}
    folder = _environment.dali_folder()
    dali = _environment.distributions(folder.parents[1] if folder else SITE)
    for name, versions in dali.items():
        found[name] = " and ".join(versions)
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except Exception:  # metadata may be damaged, too
            continue
    return found


def _driver_release(text: str) -> str | None:
    """Of the first line: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ...`."""
    words = text.splitlines()[0].split() if text else []
    return next((word for word in words if word.replace(".", "").isdigit() and "." in word), None)


def _add_place(gpu: dict[str, Any]) -> None:
    folder = Path("/sys/bus/pci/devices") / gpu.pop("bus", "none")
    gpu["near_cores"] = _text(folder / "local_cpulist", str.strip)


def _gds(cufile: dict[str, Any]) -> dict[str, Any]:
    """Whether `io="auto"` reads with cuFile, as src/fetch/cufile.rs decides."""
    if "microsoft" in (_text("/proc/version", str.lower) or ""):
        return {"direct": False, "why": "cuFile does not work under WSL"}
    if not Path("/proc/driver/nvidia-fs").exists():
        return {"direct": False, "why": "the kernel module nvidia-fs is not loaded"}
    if "problem" in cufile:
        return {"direct": False, "why": f"libcufile cannot be loaded: {cufile['problem']}"}
    return {
        "direct": True,
        "why": "nvidia-fs is loaded; whether a file system supports it shows when it is read",
    }


def _cores() -> dict[str, Any]:
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {
        "model": _text("/proc/cpuinfo", _model),
        "there": os.cpu_count(),
        "usable": len(usable) or os.cpu_count(),
        "list": cpu_list(usable),
        "quota": _quota(),
    }


def _model(text: str) -> str | None:
    lines = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(lines, None)


def cpu_list(cores: list[int]) -> str:
    """Numbers as the kernel writes them: `0-3,8`."""
    spans: list[list[int]] = []
    for core in cores:
        if spans and spans[-1][1] == core - 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _cgroup(controller: str, file: str, file_v1: str) -> list[str]:
    """What the files of the process's control group and of those above it say, of version 2 and 1."""
    said = []
    for line in _text(OWN_CGROUPS, str.splitlines) or []:
        _, controllers, path = (line.split(":", 2) + ["", "", ""])[:3]
        if controllers == "":
            roots, name = (CGROUPS, CGROUPS / "unified"), file
        elif controller in controllers.split(","):
            roots, name = (CGROUPS / controller, CGROUPS / controllers), file_v1
        else:
            continue
        for root in roots:
            place = root / path.lstrip("/")
            # In a container the path is often that of the host, and its own group is the root.
            folders = [one for one in (place, *place.parents) if one == root or root in one.parents]
            said += [text for one in folders if (text := _text(one / name, str.strip))]
    return said


def _quota() -> float | None:
    """Cores' worth of time that the container may use."""
    found = []
    for text in _cgroup("cpu", "cpu.max", "cpu.cfs_quota_us"):
        words = text.split()
        if words[0].lstrip("-").isdigit() and int(words[0]) > 0:
            found.append(int(words[0]) / (int(words[1]) if len(words) > 1 else 100_000))
    return round(min(found), 2) if found else None


def _memory() -> dict[str, Any]:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        int(text) for text in _cgroup("memory", "memory.max", "memory.limit_in_bytes") if text.isdigit()
    ]
    available = _text("/proc/meminfo", _available)
    # Version 1 says a number near 2^63 where there is no limit.
    limits = [limit for limit in limits if limit < there]
    return {"bytes": there, "available_bytes": available, "limit_bytes": min(limits, default=None)}


def _available(text: str) -> int | None:
    found = (line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable:"))
    return next((int(kib) * 1024 for kib in found), None)


def _files() -> dict[str, Any]:
    def limit(which: int) -> list[int | None]:
        return [None if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(which)]

    try:
        shm = os.statvfs("/dev/shm")
        shm_bytes = shm.f_frsize * shm.f_blocks
    except OSError:
        shm_bytes = None
    return {
        "open_files": limit(resource.RLIMIT_NOFILE),
        "locked_bytes": limit(resource.RLIMIT_MEMLOCK),
        "shm_bytes": shm_bytes,
    }


def _text(path: str | Path, of: Callable[[str], Any]) -> Any:
    """What a function makes of a small file; None where it cannot be read."""
    try:
        return of(Path(path).read_text(errors="replace"))
    except (OSError, IndexError, ValueError):
        return None


def _without_home(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_home(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_home(one) for one in value]
    home = os.path.expanduser("~")
    return value.replace(home, "~") if isinstance(value, str) and len(home) > 1 else value
