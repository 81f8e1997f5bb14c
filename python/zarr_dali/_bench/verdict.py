"""What limits a reader, in one sentence, from what was measured and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zarr_dali._advice import size
from zarr_dali._bench.ceilings import Ceiling, StoreCeiling
from zarr_dali._bench.timing import Row

NEAR = 0.15
"""A rate within this share of a ceiling has reached it."""
MOSTLY = 0.5
"""A cause that takes more than this share of the time is what limits."""
MOST_REQUESTS = 256
"""As many as a reader has in flight at most (src/options.rs)."""
BUSY = 0.85
"""Cores of which this share is busy are all in use."""

WAITING = {
    "fetch": "reading the chunks into memory",
    "cpu": "decoding on the CPU",
    "gpu": "decoding on the GPU",
    "gather": "putting the samples together",
}
"""What a batch waited for last, by the reader's own count."""
CAUSE_OF = {"page_cache": "fetch", "disk": "fetch", "store": "fetch", "copy": "gpu"}
"""What is waited for where a ceiling is reached."""
LIMITS = {
    "copy": "the copy to the GPU",
    "page_cache": "the copy from the page cache",
    "disk": "the disk",
    "store": "the store",
}


@dataclass(frozen=True)
class Gains:
    """Delivered bytes for each byte that moves: what a ceiling's rate is multiplied with."""

    read: float
    """For each encoded byte that is read."""
    copied: float
    """For each byte that crosses to the GPU: encoded where the GPU decodes, else decoded."""

    @classmethod
    def of(cls, row: Row, ratio: float, on_gpu: bool) -> Gains:
        """From what the reader counted, or, where it counted too little, from the store's ratio."""
        delivered, stats = row.delivered_bytes, row.stats
        read, decoded = stats.get("bytes_read", 0), stats.get("bytes_decoded", 0)
        if not delivered or not read:
            return cls(ratio, ratio if on_gpu else 1.0)
        decoded = max(decoded, 1)
        share = stats.get("bytes_decoded_gpu", decoded if on_gpu else 0) / decoded
        copied = share * read + (1 - share) * decoded
        return cls(delivered / read, delivered / copied)

    def ceiling(self, key: str) -> float:
        """By ceiling."""
        return self.copied if key == "copy" else self.read


def delivered(ceiling: Ceiling, gains: Gains) -> float | None:
    """A ceiling as GB/s of delivered values; None where it was not measured or does not apply."""
    return None if ceiling.gb_per_s is None else ceiling.gb_per_s * gains.ceiling(ceiling.key)


def waiting_for(stats: dict[str, float]) -> tuple[str, float] | None:
    """What DALI waited for most, for how many milliseconds; None where the reader does not count it."""
    counted = {cause: stats.get(f"ms_waiting_{cause}", 0.0) for cause in WAITING}
    most = max(counted, key=counted.__getitem__)
    return (most, counted[most]) if counted[most] > 0 else None


def warm(rate: float, row: Row, ceilings: Sequence[Ceiling], gains: Gains, cores: int) -> str:
    """What limits from a warm page cache, or from a store that is no folder, without a full stop."""
    reached = _reached(rate, [ceiling for ceiling in ceilings if ceiling.key != "disk"], gains)
    waited = waiting_for(row.stats)
    if waited and len(reached) > 1:
        reached = [pair for pair in reached if CAUSE_OF[pair[0].key] == waited[0]] or reached
    if reached:
        ceiling, limit = reached[0]
        why = f": {why_store(ceiling.store)}" if ceiling.store else ""
        return f"{LIMITS[ceiling.key]} limits ({rate:.3g} of {limit:.3g} GB/s){why}"
    idle = row.stats.get("ms_waiting_consumer", 0.0) / 1000
    if row.seconds and idle > MOSTLY * row.seconds:
        return (
            f"the consumer limits: for {idle / row.seconds:.0%} of the time the reader had all batches ready"
        )
    seen = next((ceiling.store for ceiling in ceilings if ceiling.store), None)
    if waited and waited[0] == "fetch" and seen and (sentence := of_requests(rate, row.stats, seen)):
        return sentence
    busy = sum(row.cpu_cores) / len(row.cpu_cores) if row.cpu_cores else 0.0
    all_busy = f"{busy:.3g} of {cores} cores busy"
    if waited and row.seconds:
        share = min(1.0, waited[1] / 1000 / row.seconds)
        told = f", {all_busy}" if waited[0] in ("cpu", "fetch") else ""
        return (
            f"{WAITING[waited[0]]} limits: batches waited for it {share:.0%} of the time{told} "
            f"({rate:.3g} GB/s, below every ceiling that was measured)"
        )
    if busy >= BUSY * cores:
        return f"the CPU limits ({all_busy}, {rate:.3g} GB/s)"
    return f"no ceiling that was measured is reached ({rate:.3g} GB/s, {all_busy})"


def why_store(seen: StoreCeiling) -> str:
    """Why bare requests to a store give no more."""
    if seen.busy >= BUSY:
        what = "decrypting TLS and receiving" if seen.over_tls else "receiving"
        return f"{what} keeps the {seen.threads} threads that do it busy"
    counts = sorted(seen.rates)
    if len(counts) > 1 and seen.rates[counts[-1]] > (1 + NEAR) * seen.rates[counts[-2]]:
        return (
            f"its latency does, for {counts[-1]} requests at once still gave more than {counts[-2]} "
            f"({seen.ms_to_first_byte:.3g} ms to the first byte)"
        )
    return f"its bandwidth or the network's does, for more than {seen.requests} requests at once gave no more"


def of_requests(rate: float, stats: dict[str, float], seen: StoreCeiling) -> str:
    """What keeps requests below what the store gives, by the reader's counters; empty if not known."""
    requests, peak = stats.get("requests", 0), stats.get("requests_in_flight_peak", 0)
    if not requests or not peak:
        return ""
    each = stats.get("bytes_fetched", 0) / requests
    latency = stats.get("ms_time_to_first_byte_p50") or seen.ms_to_first_byte
    begun = f"{latency:.3g} ms to the first byte, {rate:.3g} GB/s, below what the store gives"
    if peak >= BUSY * MOST_REQUESTS:
        return (
            f"the number of requests limits: {peak:.0f} at once for {size(each)} each; larger chunks, or "
            f"shards whose inner chunks are read together, need fewer ({begun})"
        )
    return (
        f"latency limits: memory allows {peak:.0f} requests at once for {size(each)} each; a larger "
        f"host_memory_budget or prefetch_queue_depth allows more ({begun})"
    )


def cold(rate: float, warm_rate: float, ceilings: Sequence[Ceiling], gains: Gains, with_opening: bool) -> str:
    """What limits when the files come from the disk, without a full stop."""
    for ceiling, limit in _reached(rate, [one for one in ceilings if one.key == "disk"], gains):
        return f"{LIMITS['disk']} ({rate:.3g} of {limit:.3g} GB/s: {ceiling.gb_per_s:.3g} x {gains.read:.3g})"
    if rate >= (1 - NEAR) * warm_rate:
        return f"the same as warm ({rate:.3g} GB/s)"
    if with_opening:
        return f"opening the reader, which takes most of so short an epoch ({rate:.3g} GB/s)"
    limit = next((delivered(one, gains) for one in ceilings if one.key == "disk" and one.gb_per_s), None)
    if limit is None:
        return f"not known ({rate:.3g} GB/s; the disk's rate was not measured)"
    return f"neither the disk alone ({limit:.3g} GB/s) nor what limits warm ({rate:.3g} GB/s)"


def _reached(rate: float, ceilings: Sequence[Ceiling], gains: Gains) -> list[tuple[Ceiling, float]]:
    """The ceilings that the rate comes near to, the nearest first.

    One that the rate exceeds by more than that was no ceiling: Python's threads read less from the page cache
    than there is.
    """
    limits = [(ceiling, delivered(ceiling, gains)) for ceiling in ceilings]
    near = [(ceiling, limit) for ceiling, limit in limits if limit and abs(rate / limit - 1) <= NEAR]
    return sorted(near, key=lambda pair: abs(rate / pair[1] - 1))
