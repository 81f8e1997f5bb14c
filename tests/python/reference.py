"""What the reader has to do, as plain formulas: sample windows, sample order, padding and epoch sizes.

Nothing here knows Zarr or DALI. `test_order.py` shows that the order is the one of DALI's own readers.
"""

import math
from itertools import islice, product, repeat

# Dimension names that have a letter in DALI layouts, beside names that are one letter already.
LETTERS = {
    "time": "T",
    "level": "D",
    "z": "D",
    "depth": "D",
    "latitude": "H",
    "lat": "H",
    "y": "H",
    "longitude": "W",
    "lon": "W",
    "x": "W",
    "channel": "C",
    "c": "C",
    "variable": "C",
}


def windows(shape, window=None, stride=None):
    """Index expressions of all samples, in sample order.

    Without `window` a sample is `array[i]`, so the first index is an int and the dimension falls away.
    """
    if window is None:
        return [(i, *(slice(0, extent) for extent in shape[1:])) for i in range(shape[0])]
    if stride is None:
        stride = [1, *window[1:]]
    starts = [range(0, extent - size + 1, step) for extent, size, step in zip(shape, window, stride)]
    whole = tuple(slice(0, extent) for extent in shape[len(window) :])
    return [
        tuple(slice(at, at + size) for at, size in zip(corner, window)) + whole for corner in product(*starts)
    ]


def source_info(path, array, index):
    """The text that names a sample: `<path>/<array>[a:b, ...]`."""
    place = f"{path}/{array}" if array else f"{path}"
    ranges = ", ".join(str(part) if isinstance(part, int) else f"{part.start}:{part.stop}" for part in index)
    return f"{place}[{ranges}]"


def shard_range(count, num_shards, shard):
    """Samples of one reader shard."""
    return range(count * shard // num_shards, count * (shard + 1) // num_shards)


def visits(count, *, shard_id=0, num_shards=1, stick_to_shard=False):
    """Endless: the reader shard that a reader visits in each epoch, as (epoch, shard, samples)."""
    epoch = 0
    while True:
        shard = shard_id if stick_to_shard else (shard_id + epoch) % num_shards
        yield epoch, shard, shard_range(count, num_shards, shard)
        epoch += 1


def batches_per_epoch(count, num_shards, batch_size):
    """Batches that every reader gets in every epoch when the last batch is padded."""
    return math.ceil(math.ceil(count / num_shards) / batch_size)


def batches(
    count,
    batch_size,
    how_many,
    *,
    shard_id=0,
    num_shards=1,
    stick_to_shard=False,
    pad_last_batch=False,
    arrange=lambda epoch, shard, samples: list(samples),
):
    """The first `how_many` batches as lists of sample numbers.

    `arrange` puts the samples of one visit in their order; unshuffled it keeps them.
    """
    order = samples_in_order(count, batch_size, arrange, shard_id, num_shards, stick_to_shard, pad_last_batch)
    return [list(islice(order, batch_size)) for _ in range(how_many)]


def samples_in_order(count, batch_size, arrange, shard_id, num_shards, stick_to_shard, pad_last_batch):
    """Endless: the sample numbers that a reader yields one after the other."""
    for epoch, shard, samples in visits(
        count, shard_id=shard_id, num_shards=num_shards, stick_to_shard=stick_to_shard
    ):
        order = arrange(epoch, shard, samples)
        yield from order
        if pad_last_batch:
            length = batches_per_epoch(count, num_shards, batch_size) * batch_size
            yield from repeat(order[-1], length - len(order))


def meta(count, *, shard_id=0, num_shards=1, stick_to_shard=False, pad_last_batch=False):
    """What `Pipeline.reader_meta` reports."""
    return {
        "epoch_size": count,
        "epoch_size_padded": math.ceil(count / num_shards) * num_shards if pad_last_batch else count,
        "number_of_shards": num_shards,
        "shard_id": shard_id,
        "pad_last_batch": pad_last_batch,
        "stick_to_shard": stick_to_shard,
    }


def layout(names):
    """DALI layout of an array whose dimensions have these names, or an empty one."""
    letters = [LETTERS.get((name or "").lower()) or (name or "").upper() for name in names]
    if any(len(letter) != 1 for letter in letters) or len(set(letters)) != len(letters):
        return ""
    return "".join(letters)
