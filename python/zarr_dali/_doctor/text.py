"""The facts and findings as a page of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from zarr_dali._doctor.findings import Finding, gib

WIDTH, INDENT = 80, 14
KINDS = {"broken": "Does not work", "slow": "Costs speed", "note": "May matter"}


def page(facts: dict[str, Any], found: list[Finding]) -> str:
    lines = [line for name, text in _rows(facts) for line in _row(name, text)]
    for kind, title in KINDS.items():
        some = [one for one in found if one.kind == kind]
        lines += ["", title] if some else []
        for one in some:
            lines += _wrapped(f"- {one.what}", "", "  ")
            lines += _wrapped(f"-> {one.remedy}", "  ", "     ")
    return "\n".join(lines if found else [*lines, "", "Nothing was found that stands in the way."])


def _row(name: str, text: str) -> list[str]:
    return _wrapped(text, f"{name:<{INDENT}}", " " * INDENT)


def _wrapped(text: str, first: str, others: str) -> list[str]:
    """Lines of a text. Names of packages and options stay whole, so that commands can be pasted."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    system, driver, cores = facts["system"], facts["driver"], facts["cores"]
    inside = f", in {system['container']}" if system["container"] else ""
    yield "system", f"{system['system']}, Linux {system['kernel']}, {system['machine']}{inside}"
    yield "python", f"{system['python']}, glibc {system['glibc'] or 'none'}"
    yield "packages", ", ".join(f"{name} {version}" for name, version in facts["packages"].items()) or "none"
    yield "plugin", facts["plugin"].get("loaded") or "not loaded, see below"
    release = f"{driver['release']}, " if driver.get("release") else ""
    yield "driver", f"{release}CUDA {driver['cuda']}" if driver.get("cuda") else driver["problem"]
    for ordinal, gpu in enumerate(driver.get("gpus", [])):
        yield (
            f"GPU {ordinal}",
            gpu.get("problem")
            or (
                f"{gpu['name']}, {gib(gpu['memory_bytes'])}, compute capability "
                f"{'.'.join(map(str, gpu['compute_capability']))}, "
                f"near cores {gpu['near_cores'] or 'unknown'}{_engine(gpu)}"
            ),
        )
    nvcomp = facts["nvcomp"]
    yield "nvCOMP", f"{nvcomp.get('release', '')} {nvcomp.get('loaded', nvcomp.get('problem'))}".strip()
    yield "cuFile", facts["cufile"].get("loaded") or facts["cufile"]["problem"]
    yield "GDS", f"{'direct' if facts['gds']['direct'] else 'not direct'}: {facts['gds']['why']}"
    quota = f", time of {cores['quota']:g}" if cores["quota"] is not None else ""
    yield (
        "cores",
        f"{cores['usable']} of {cores['there']} ({cores['list']}){quota}; {cores['model'] or 'unknown'}",
    )
    yield "memory", _memory(facts["memory"])
    files = facts["files"]
    locked, shm = files["locked_bytes"][0], files["shm_bytes"]
    yield (
        "limits",
        (
            f"{_limit(files['open_files'][0])} open files (at most {_limit(files['open_files'][1])}), "
            f"locked memory {'unlimited' if locked is None else gib(locked)}, "
            f"/dev/shm {'none' if shm is None else gib(shm)}"
        ),
    )
    if facts["environment"]:
        yield "environment", ", ".join(f"{name}={value}" for name, value in facts["environment"].items())


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def _engine(gpu: dict[str, Any]) -> str:
    names = gpu.get("decompression_engine")
    return f", decompression engine for {', '.join(names)} (not used)" if names else ""


def _memory(memory: dict[str, Any]) -> str:
    available = memory["available_bytes"]
    limit = memory["limit_bytes"]
    return (
        gib(memory["bytes"])
        + (f", {gib(available)} available" if available else "")
        + (f", limit of the container {gib(limit)}" if limit else ", no limit of a container")
    )
