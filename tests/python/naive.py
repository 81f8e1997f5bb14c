"""The samples of a reader, found one by one, and their values by NumPy's own indexing.

This is the obvious version of what the sampler computes in closed form: every start is tried, every element
of a sample is looked at. Nothing here knows Zarr, chunks or DALI.
"""

import json
from dataclasses import dataclass, fields
from itertools import product

import numpy as np

import reference


@dataclass(frozen=True)
class Sampling:
    """The arguments that decide which samples there are, named as the reader names them."""

    window: tuple | None = None
    stride: tuple | None = None
    dilation: tuple | None = None
    offsets: tuple | None = None
    roi_start: tuple | None = None
    roi_end: tuple | None = None
    exclude: tuple | None = None
    breaks: tuple | None = None
    along: dict | None = None
    """Offsets of later dimensions by their numbers."""
    breaks_along: dict | None = None
    """Breaks of these."""

    def arguments(self):
        """The same as arguments of the reader; what is not given is left out."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        along, breaks = given.pop("along"), given.pop("breaks_along") or {}
        found = {name: list(values) for name, values in given.items() if values is not None}
        if along:
            entries = {
                str(d): {"offsets": list(its), "breaks": list(breaks[d])} if d in breaks else list(its)
                for d, its in along.items()
            }
            found["dimension_offsets"] = json.dumps(entries)
        return found

    @property
    def dimensions(self):
        """How many leading dimensions the starts of samples run over."""
        return len(self.window) if self.window else 1 + max(self.along or [0])

    @property
    def drops_first(self):
        """A sample is `array[i]`, without its first dimension."""
        return self.window is None and self.offsets is None and not self.along

    def roi(self, dimension, extent):
        """First index and end of what may be read along a dimension."""
        start, end = (
            bounds[dimension] if bounds and dimension < len(bounds) else default
            for bounds, default in ((self.roi_start, 0), (self.roi_end, extent))
        )
        return start, end

    def steps(self, dimension):
        """The elements of a sample along a window dimension, counted from its start."""
        if dimension == 0 and self.offsets is not None:
            return list(self.offsets)
        if self.along and dimension in self.along:
            return list(self.along[dimension])
        extent = self.window[dimension] if self.window else 1
        dilation = self.dilation[dimension] if self.dilation else 1
        return [i * dilation for i in range(extent)]

    def step_between_starts(self, dimension):
        if self.stride is not None:
            return self.stride[dimension]
        return 1 if dimension == 0 or dimension in (self.along or {}) else self.steps(dimension)[-1] + 1

    def starts(self, dimension, extent):
        """All starts of samples along one window dimension."""
        start, end = self.roi(dimension, extent)
        steps = self.steps(dimension)
        reach = extent + max(map(abs, steps))
        fits = [at for at in range(-reach, reach + 1) if all(start <= at + step < end for step in steps)]
        found = fits[:: self.step_between_starts(dimension)]
        if dimension == 0 and self.exclude:
            found = [at for at in found if not {at + step for step in steps} & set(self.exclude)]
        breaks = self.breaks if dimension == 0 else (self.breaks_along or {}).get(dimension)
        if breaks:
            found = [
                at for at in found if not any(self._reaches_over(dimension, index, at) for index in breaks)
            ]
        return found

    def _reaches_over(self, dimension, index, start):
        """Whether a sample has steps before this index of a dimension and others that are not."""
        return len({start + step < index for step in self.steps(dimension)}) == 2

    def samples(self, shape):
        """The start of each sample, in the order of sample numbers."""
        return list(product(*(self.starts(d, shape[d]) for d in range(self.dimensions))))

    def index(self, shape, start):
        """The indices that a sample takes along every dimension of an array."""
        window = [[at + step for step in self.steps(d)] for d, at in enumerate(start)]
        return window + [list(range(*self.roi(d, shape[d]))) for d in range(len(start), len(shape))]

    def values(self, array, start):
        """The sample of `array` with this start."""
        values = array[np.ix_(*self.index(array.shape, start))]
        return values[0] if self.drops_first else values

    def stacked(self, arrays, start):
        """The sample of arrays stacked behind the first dimension of the window."""
        return np.stack([self.values(array, start) for array in arrays], axis=0 if self.drops_first else 1)

    def source_info(self, place, shape, start):
        """The text that names a sample: `place[a:b, ...]`, `a:b:step` where elements are apart."""
        index = [_range_of(indices) for indices in self.index(shape, start)]
        if self.drops_first:
            index[0] = str(start[0])
        return f"{place}[{', '.join(index)}]"


def _range_of(indices):
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    if step < 1 or indices != list(range(indices[0], indices[-1] + 1, step)):
        return f"[{','.join(map(str, indices))}]"
    return f"{indices[0]}:{indices[-1] + 1}" + (f":{step}" if step > 1 else "")


def beside(axes, index, own, values):
    """What of labels belongs to the part of an image with these indices along its axes."""
    along = dict(zip(axes, index))
    return values[
        np.ix_(*([0] if extent == 1 else list(along[axis]) for axis, extent in zip(own, values.shape)))
    ]


def expected_beside(sampling, shape, axes, own, values, selected=None):
    """The samples of an array with these axes, one for each window over an image of this shape.

    `selected` holds for each axis of the image the indices that windows count in.
    """
    selected = selected or [range(extent) for extent in shape]
    found = []
    for start in sampling.samples([len(indices) for indices in selected]):
        places = sampling.index([len(indices) for indices in selected], start)
        index = [[indices[place] for place in its] for indices, its in zip(selected, places)]
        part = beside(axes, index, own, values)
        follows = own[0] == axes[0] and values.shape[0] == shape[0]
        found.append(part[0] if sampling.drops_first and follows else part)
    return found


def visits(
    numbers, count, batch_size, *, num_shards=1, shard_id=0, stick_to_shard=False, pad_last_batch=False
):
    """What a reader yielded, cut into visits of reader shards: (shard, its samples, repeats behind them).

    Only whole visits are returned.
    """
    padded = reference.batches_per_epoch(count, num_shards, batch_size) * batch_size
    walk = reference.visits(count, shard_id=shard_id, num_shards=num_shards, stick_to_shard=stick_to_shard)
    found, at = [], 0
    for _, shard, samples in walk:
        length = padded if pad_last_batch else len(samples)
        if at + length > len(numbers):
            return found
        visit = numbers[at : at + length]
        found.append((shard, visit[: len(samples)], visit[len(samples) :]))
        at += length
    raise AssertionError("the walk over visits has no end")
