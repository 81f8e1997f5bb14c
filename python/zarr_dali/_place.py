"""Where an epoch stands: what a state of a loader and the reader's argument `position` have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

POSITION_VERSION = 3
"""Of the reader's argument `position`, which a state of a loader is."""

COUNTERS = ("version", "epoch", "batch", "num_shards", "batch_size", "played")


class Place(NamedTuple):
    """Where an epoch stands: `batch` batches are done, behind what earlier configurations have played."""

    epoch: int = 0
    batch: int = 0
    played: tuple[tuple[int, int, int], ...] = ()
    """Ranks, batch size and batches of each rank."""

    @property
    def is_start(self) -> bool:
        return self.batch == 0 and not self.played

    def counters(self, ranks: int, batch_size: int) -> dict[str, Any]:
        """What a state or `position` says of the place."""
        return {
            "version": POSITION_VERSION,
            "epoch": self.epoch,
            "batch": self.batch,
            "num_shards": ranks,
            "batch_size": batch_size,
            "played": [list(segment) for segment in self.played],
        }

    def left(self, count: int) -> int:
        """Samples of an epoch of `count` that are left behind what was played of it."""
        for ranks, batch_size, batches in self.played:
            count = sum(max(0, part - batches * batch_size) for part in parts(count, ranks))
        return count


def of_state(state: Mapping[str, Any], ranks: int, batch_size: int) -> Place:
    """The place that a state of any number of ranks and batch size names, in these."""
    if not isinstance(state, Mapping) or state.get("version") != POSITION_VERSION:
        raise ValueError(
            f"state_dict is no state of a Loader with version {POSITION_VERSION}: {state!r:.200}"
        )
    try:
        epoch, batch = int(state["epoch"]), int(state["batch"])
        before = int(state["num_shards"]), int(state["batch_size"])
        played = tuple((int(a), int(b), int(c)) for a, b, c in state["played"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"state_dict is damaged ({error!r}): {state!r:.200}") from error
    if before == (ranks, batch_size):
        return Place(epoch, batch, played)
    return Place(epoch, 0, (*played, (*before, batch)) if batch else played)


def identity_of(position: Mapping[str, Any]) -> dict[str, Any]:
    """What a position says besides where it is: seed, kind of shuffle and fingerprint of the reader."""
    return {name: value for name, value in position.items() if name not in COUNTERS}


def parts(count: int, ranks: int) -> list[int]:
    """The sizes of the parts into which samples are cut."""
    return [count * (part + 1) // ranks - count * part // ranks for part in range(ranks)]
