"""What of the facts stands in the way or costs speed. Pure: facts in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from zarr_dali import _environment

OLDEST_CUDA = (12, 0)
OLDEST_CAPABILITY = {12: [7, 0], 13: [7, 5]}
"""By the major release of CUDA that the driver is for."""
OLDEST_NVCOMP = (5, 1, 0)
FEW_FILES = 4096
SMALL_SHM = 1 << 30


class Finding(NamedTuple):
    """One thing to know, with its remedy."""

    kind: str
    """"broken": it does not work; "slow": it costs speed; "note": it may matter."""
    what: str
    remedy: str


def of(facts: dict[str, Any]) -> list[Finding]:
    """The worst first."""
    found = [*_plugin(facts), *_gpu(facts), *_nvcomp(facts), *_gds(facts), *_cores(facts), *_limits(facts)]
    return sorted(found, key=lambda one: ("broken", "slow", "note").index(one.kind))


def _plugin(facts: dict[str, Any]) -> Iterator[Finding]:
    if problem := facts["plugin"].get("problem"):
        what, colon, remedy = problem.rpartition(": ")
        yield Finding("broken", what if colon else problem, remedy if colon else _environment.AGAIN)
    # Where several are installed, that is the problem, and its remedy is for all their versions.
    for name, version in _dali(facts) if len(_dali(facts)) == 1 else []:
        if " and " in version:
            yield Finding(
                "note",
                f"pip has noted {name} {version}, as an interrupted upgrade leaves them",
                _environment.reinstalled(name, version.split(" and ")),
            )


def _gpu(facts: dict[str, Any]) -> Iterator[Finding]:
    driver = facts["driver"]
    upgrade = 'install a driver for CUDA 12 or 13 (525 or newer), or read with device="cpu"'
    if (cuda := driver.get("cuda")) and tuple(map(int, cuda.split("."))) < OLDEST_CUDA:
        yield Finding("broken", f"GPU backend: the driver is for CUDA {cuda}, older than 12.0", upgrade)
        return
    if cuda and (dali := _cuda_of_dali(facts)) and dali > _cuda(facts):
        ((name, version),) = _dali(facts)
        other = _environment.for_another_cuda(name, version.split(" and "), _cuda(facts))
        yield Finding(
            "broken",
            f"GPU backend: DALI is for CUDA {dali}, and the driver for CUDA {cuda}",
            f"{other}, or a newer driver",
        )
    oldest = OLDEST_CAPABILITY.get(_cuda(facts), OLDEST_CAPABILITY[13])
    if problem := driver.get("problem"):
        remedy = f"{upgrade}; a container is started with --gpus all"
        yield Finding("broken", f"GPU backend: {problem}", remedy)
        return
    if not driver.get("gpus"):
        yield Finding(
            "broken",
            "GPU backend: the driver shows no GPU",
            "look at CUDA_VISIBLE_DEVICES and the container's GPUs",
        )
    usable = _numbers(facts["cores"]["list"])
    for ordinal, gpu in enumerate(driver.get("gpus", [])):
        if gpu.get("compute_capability", oldest) < oldest:
            name = "Volta" if oldest == [7, 0] else "Turing"
            yield Finding(
                "broken", f"GPU {ordinal} ({gpu['name']}) is older than {name}", 'read with device="cpu"'
            )
        near = _numbers(gpu.get("near_cores") or "")
        if near and usable and not near & usable:
            yield Finding(
                "slow",
                f"no core that this process may use is near GPU {ordinal}: copies cross between sockets",
                f"start the process on the cores {gpu['near_cores']} (`taskset -c {gpu['near_cores']} ...`)",
            )
    if facts["environment"].get("CUDA_LAUNCH_BLOCKING", "0") != "0":
        yield Finding("slow", "CUDA_LAUNCH_BLOCKING makes every kernel wait", "unset CUDA_LAUNCH_BLOCKING")


def _nvcomp(facts: dict[str, Any]) -> Iterator[Finding]:
    # By force: pip takes one whose files a second one has overwritten and taken along for installed.
    nvcomp, package = facts["nvcomp"], f"nvidia-libnvcomp-cu{_cuda_of_dali(facts) or _cuda(facts)}"
    install = f'`pip install --force-reinstall --no-deps "{package}>=5.1,<7"`'
    release = nvcomp.get("release")
    if problem := nvcomp.get("problem"):
        why = 'which only `gpu_zstd="nvcomp"` and zstd chunks of 512 MB or more need'
        yield Finding("note", f"nvCOMP is not found, {why} ({problem})", install)
    elif release and tuple(map(int, release.split("."))) < OLDEST_NVCOMP:
        yield Finding("note", f"nvCOMP {release} is too old to be used", install)


def _gds(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["driver"].get("gpus") and not facts["gds"]["direct"]:
        yield Finding(
            "note",
            f"GPUDirect Storage is not direct: {facts['gds']['why']}",
            "for uncompressed chunks on local NVMe load nvidia-fs; the rest is read through the page cache",
        )


def _cores(facts: dict[str, Any]) -> Iterator[Finding]:
    cores = facts["cores"]
    there, usable, quota = cores["there"] or 0, cores["usable"] or 0, cores["quota"]
    if usable < there:
        yield Finding(
            "slow",
            f"the process may use {usable} of {there} cores ({cores['list']})",
            "give it more: --cpus-per-task in Slurm, --cpuset-cpus in docker, or a wider `taskset -c`",
        )
    if quota is not None and quota < usable:
        yield Finding(
            "slow",
            f"the container may use {quota:g} cores' worth of time, and is stopped when it is used up",
            "raise the limit: --cpus in docker, resources.limits.cpu in Kubernetes",
        )


def _limits(facts: dict[str, Any]) -> Iterator[Finding]:
    memory, files = facts["memory"], facts["files"]
    if limit := memory["limit_bytes"]:
        yield Finding(
            "note",
            f"the container is limited to {gib(limit)} of {gib(memory['bytes'])}, page cache included: "
            "larger stores come from the disk in each epoch",
            "raise the limit: --memory in docker, resources.limits.memory in Kubernetes, --mem in Slurm",
        )
    soft, hard = files["open_files"]
    if soft is not None and soft < FEW_FILES:
        wanted = 65536 if hard is None else min(65536, hard)
        remedy = (
            f"`ulimit -n {wanted}`" if wanted > soft else "have the administrator raise the limit (nofile)"
        )
        yield Finding(
            "slow", f"{soft} open files: chunks that are read ahead may hold a quarter of them open", remedy
        )
    if files["shm_bytes"] is not None and files["shm_bytes"] < SMALL_SHM:
        yield Finding(
            "note",
            f"/dev/shm has {gib(files['shm_bytes'])}: this reader does not use it, workers of a torch "
            "DataLoader and NCCL do",
            "--shm-size 8g in docker, an emptyDir with medium Memory in Kubernetes",
        )


def _cuda(facts: dict[str, Any]) -> int:
    """The major release of CUDA that the driver is for; 13 where there is none."""
    return min(int(facts["driver"].get("cuda", "13.0").split(".")[0]), 13)


def _cuda_of_dali(facts: dict[str, Any]) -> int | None:
    """The major release of CUDA that the installed DALI is for, if one is installed."""
    found = _dali(facts)
    return int(found[0][0].rpartition("cuda")[2]) // 10 if len(found) == 1 else None


def _dali(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The distributions of DALI that are installed, with their versions."""
    named = re.compile(r"nvidia-dali(-[a-z]+)?-cuda\d+")
    return [one for one in facts["packages"].items() if named.fullmatch(one[0])]


def _numbers(cpu_list: str) -> set[int]:
    """The cores that `0-3,8` names."""
    found: set[int] = set()
    for span in filter(None, cpu_list.split(",")):
        first, _, last = span.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"
