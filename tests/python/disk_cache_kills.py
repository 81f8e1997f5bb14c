"""Two ranks with one disk cache, each killed at random moments and started again, while the bound is watched.

Arguments: URL of the server; folder with the arrays `a`, `b` and `c` as `.npy`, in which the folder `cache`
is made; bound in bytes; number of kills. Prints what was found as JSON.
"""

import fcntl
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

import reading
import zarr_dali

ARRAYS = "abc"


def used(folder):
    """Bytes of all files of the cache, in blocks, and the bytes that are noted.

    With the lock nobody can note others meanwhile: what is written now was noted before, and what is removed
    now is noted afterwards. A file may be gone before it is looked at.
    """
    path = folder / "zarr-dali-1" / "usage"
    if not path.exists():
        return 0, 0
    with path.open("rb") as usage:
        fcntl.flock(usage, fcntl.LOCK_EX)
        noted = int.from_bytes(usage.read()[8:16], "little")
        return files(folder), noted


def files(folder):
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            if name != "usage":
                try:
                    size = os.stat(os.path.join(path, name)).st_size
                except FileNotFoundError:
                    continue
                total += -(-size // 4096) * 4096
    return total


def rank(url, root, bound, seed, report):
    """Reads one array after the other for ever. Ends with 3 if a value is wrong."""
    chance = random.Random(seed)
    while True:
        name = chance.choice(ARRAYS)
        expected = np.load(root / f"{name}.npy")
        pipe = reading.build(
            reading.CPU, f"{url}/{name}", batch_size=2, cache_dir=str(root / "cache"), cache_dir_bytes=bound
        )
        for step in range(60):
            found = np.stack(reading.to_samples(pipe.run()[0]))
            first = 2 * step % len(expected)
            if not np.array_equal(found, expected[first : first + 2]):
                os._exit(3)
            os.write(report, b"b")
        os.write(report, b"h" * (zarr_dali.stats(pipe)["disk_cache_hits"] > 0))
        del pipe


def start(*arguments):
    child = os.fork()
    if child == 0:
        try:
            rank(*arguments)
        finally:
            os._exit(4)
    return child


def main():
    url, root, bound, kills = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    chance = random.Random(5)
    found, report = os.pipe()
    os.set_blocking(found, False)
    counts = {"b": 0, "h": 0}
    most, most_noted, above, wrong, seed = 0, 0, 0, 0, 0
    ranks = []
    for killed in range(kills + 1):
        while len(ranks) < 2:
            seed += 1
            ranks.append(start(url, root, bound, seed, report))
        # Behind the last kill both read on for a while.
        until = time.monotonic() + (chance.uniform(0, 0.6) if killed < kills else 4)
        while time.monotonic() < until:
            now, noted = used(root / "cache")
            most, most_noted, above = max(most, now), max(most_noted, noted), above + (now > noted)
            try:
                for letter in os.read(found, 1 << 16).decode():
                    counts[letter] += 1
            except BlockingIOError:
                pass
            time.sleep(0.005)
        for child in ranks if killed == kills else [ranks.pop(chance.randrange(2))]:
            os.kill(child, signal.SIGKILL)
            wrong += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL
    result = {"kills": kills, "wrong": wrong, "most_used": most, "most_noted": most_noted, "above": above}
    result |= {"batches": counts["b"], "hits": counts["h"]}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
