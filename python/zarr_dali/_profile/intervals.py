"""Sets of moments as lists of intervals, of any unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """Disjoint intervals in order that cover the same; those at most `gap` apart become one."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The summed length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """What two lists of disjoint intervals in order have in common."""
    common_parts: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common_parts.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common_parts


def within(intervals: Sequence[Interval], start: float, end: float) -> list[Interval]:
    """The parts of disjoint intervals between two times."""
    return intersection(intervals, [(start, end)])


def outside(intervals: Sequence[Interval], start: float, end: float) -> list[Interval]:
    """What disjoint intervals in order leave free between two times."""
    free, at = [], start
    for begin, until in within(intervals, start, end):
        if at < begin:
            free.append((at, begin))
        at = until
    return [*free, (at, end)] if at < end else free
