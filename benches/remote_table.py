"""The table that `remote.py` prints: what was measured, what is to be reached, what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NETWORK_MB = 12_500
"""Megabytes a second of a network of 100 Gbit/s."""


def percent(value: float | None) -> str:
    """A share in words."""
    return "" if value is None else f"{100 * value:.1f} %"


def _raw(row: Mapping[str, Any]) -> str:
    return (
        f"{row['wire_gb_per_s']:.2f} GB/s = {percent(row['share_of_bare'])} of bare readers "
        f"({row['bare']['gb_per_s']:.2f}, {row['bare']['connections']} threads), "
        f"{percent(row['share_of_hyper'])} of hyper on {row['network_threads']} threads "
        f"({row['hyper']['gb_per_s']:.2f}); CPU s/GB: "
        f"network {row['net_cpu_s_per_gb']:.2f}, all {row['cpu_s_per_gb']:.2f}, hyper "
        f"{row['hyper']['cpu_s_per_gb']:.2f}, bare {row['bare']['cpu_s_per_gb']:.2f}; hyper that copies "
        f"what comes to memory {row['hyper_kept']['gb_per_s']:.2f} GB/s, "
        f"{row['hyper_kept']['cpu_s_per_gb']:.2f} CPU s/GB"
    )


def _against_without(row: Mapping[str, Any]) -> str:
    return (
        f"{percent(row['share_of_rate_without'])} ({row['wire_gb_per_s']:.2f} of "
        f"{row['wire_gb_per_s_without']:.2f} GB/s)"
    )


LINES: dict[str, tuple[str, str, Callable[[Mapping[str, Any]], str]]] = {
    "raw/http": ("raw store, HTTP", "95 % of the bare readers' bytes a second", _raw),
    f"raw/http/{NETWORK_MB / 1000}GB": ("the same, 100 Gbit/s", "95 %", _raw),
    "raw/https": ("the same over TLS", "90 %, at most 1.15 times hyper's CPU seconds for a GB", _raw),
    "latency/30": ("+30 ms to the first byte", "95 % of the rate without", _against_without),
    "latency/100": ("+100 ms to the first byte", "95 % of the rate without", _against_without),
    "memory-bound": (
        "memory bound, +100 ms",
        "90 % of min(bound / latency, rate); memory within the budget",
        lambda row: (
            f"{percent(row['share_of_bound'])} "
            f"({row['wire_gb_per_s']:.2f} of {row['bound_gb_per_s']:.2f} GB/s); "
            f"{percent(row['rss_share_of_budget'])} of the budget resident"
        ),
    ),
    "concurrency": (
        "2.5 GB/s in all, 90 MB/s a connection, +50 ms",
        "as much as the best number of connections",
        lambda row: (
            f"{percent(row['share_of_best'])} of bare readers with {row['best_connections']} connections: "
            + ", ".join(f"{count}: {rate:.2f}" for count, rate in row["bare_gb_per_s"].items())
        ),
    ),
    "late": (
        "1 % of requests 2 s late",
        "90 % of the rate without, at most 2 % more requests",
        lambda row: f"{_against_without(row)}, {percent(row['more_requests'])} more requests",
    ),
    "busy": (
        "5 % answered 503",
        "85 %, back within 5 s of their end",
        lambda row: (
            f"{_against_without(row)}, back after "
            + (f"{row['back_after_s']:.1f} s" if row["back_after_s"] else "more than 8 s")
        ),
    ),
    "sharded": (
        "sharded, shuffled, windows of 2",
        "useful / wire bytes 0.95, at most 1.1 times the requests of the joining rule",
        lambda row: (
            f"{row['useful_of_wire']:.3f}, {row['requests_of_rule']:.2f} times; "
            f"{row['delivered_gb_per_s']:.2f} GB/s delivered"
        ),
    ),
    "disk-cache": (
        "an epoch from the disk cache",
        "95 % of the local cold rate, no request",
        lambda row: (
            f"{percent(row['share_of_local'])} "
            f"({row['cached_gb_per_s']:.2f} of {row['local_gb_per_s']:.2f} GB/s), "
            f"{row['requests']} requests"
        ),
    ),
    "unet": (
        "U-Net at 50 ms",
        "waiting below 1 %, 98 % of the local speed",
        lambda row: (
            f"waiting {row['wait_share']:.2%}, {percent(row['share_of_local'])} "
            f"({row['samples_per_s']:.1f} samples/s)"
        ),
    ),
}


def _store(row: Mapping[str, Any]) -> str:
    best = f"{row['times_best_peer']:.2f} x {row['best_peer']}" if row["best_peer"] else "no peer is there"
    return (
        f"{row['delivered_gb_per_s']:.2f} GB/s decoded = {best}; the server alone gives "
        f"{row['server_of_taken']:.2f} times what was taken"
    )


def markdown(result: Mapping[str, Any]) -> str:
    """The table of a result."""
    work, machine = result["work"], result["machine"]
    where = ", ".join(machine["gpus"]) if work["device"] == "gpu" else machine["cpu"]
    lines = [
        f"{where}; client on {len(work['client_cores'])} cores, server on {len(work['server_cores'])}; "
        f"{work['steps']} steps (raw: {work.get('raw_steps', work['steps'])}) of 6 x {work['grid'][0]} x "
        f"{work['grid'][1]} float32, "
        f"batches of {work['batch_size']}; {result['date']}.",
        "",
        "| what | to reach | found |",
        "|---|---|---|",
    ]
    if work["quick"]:
        lines.insert(1, "A quick run: it shows that everything works, the figures mean nothing.")
    for row in result["rows"]:
        name = row["point"].removeprefix("stores/")
        what, aim, found = LINES.get(row["point"], (name, "3 times the best peer", _store))
        lines.append(f"| {what} | {aim} | {row.get('problem') or found(row)} |")
    return "\n".join(lines) + "\n"
