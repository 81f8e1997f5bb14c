"""Reads one store in a process of its own and tells what came of it and what memory it took.

    python bounded.py PATH ARGUMENTS BATCHES [CHECKPOINT]

ARGUMENTS is JSON with the operator's arguments and `batch_size`. Prints JSON: `error`, or null, `seconds` and
`grown`, the bytes that the process had at its peak beyond what it had before it built the pipeline. With INFO
in place of BATCHES it describes the store.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

import reading
import zarr_dali


def memory(name):
    """Bytes of this process that the system counts by that name: VmRSS now, VmHWM at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


def warm_up(folder):
    """A small store, so that libraries are loaded and their memory is not counted."""
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 1,
        "codecs": [{"name": "bytes"}],
    }
    folder.mkdir(exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(metadata))
    reading.build(reading.CPU, folder, batch_size=2).run()


def main(path, arguments, batches, checkpoint=None):
    warm_up(Path(path).with_name("warm.zarr"))
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    error, values, began = None, None, time.monotonic()
    try:
        if batches == "INFO":
            values = repr(zarr_dali.info(path, **json.loads(arguments)))
        else:
            arguments = json.loads(arguments)
            if checkpoint:
                arguments["position"] = checkpoint
            pipe = reading.build(reading.CPU, path, **arguments)
            for _ in range(int(batches)):
                output = pipe.run()[0].as_array()
            values = [float(np.min(output)), float(np.max(output))] if int(batches) else None
    except Exception as caught:  # whatever Python can catch
        error = f"{type(caught).__name__}: {caught}"
    seconds = time.monotonic() - began
    grown = memory("VmHWM") - before
    print(json.dumps({"error": error, "values": values, "grown": grown, "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
