"""The ways to read a store: `fn.readers.zarr` and what people use today.

Every loader delivers the batches of a `Work` and ends with the values on the device. The peers are used as
their documentation shows, with default settings. Those that return host arrays are copied to the GPU with
`.cuda()`, as their users do. None is needed: a package that is missing raises ImportError in the constructor.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import zarr_dali
from zarr_dali._bench.work import Selection, Work

READER = "reader"
MOST_WORKERS = 14
"""Worker processes of a DataLoader; two cores are left to the training."""
WORKER_TIMEOUT_S = 120
"""After which a DataLoader whose workers hang is an error."""


class Loader(Protocol):
    """A way to read the batches of a `Work` over and over, from the first to the last."""

    key: str
    """Its name in options."""
    name: str
    """Its name in tables."""
    peer: bool
    in_process: bool
    """Whether the CPU time of this process is all that it uses."""
    warm_up_s: float
    """So long it may take until it is as fast as it will be."""

    def open(self, work: Work) -> None:
        """Opens the store and gets ready to deliver the first batch."""

    def batch(self) -> Any:
        """The next batch, complete on the device when this returns."""

    def to_host(self, batch: Any) -> tuple[list[int], list[np.ndarray]]:
        """A batch's sample numbers and, of each array, its values [batch, ...]."""

    def close(self) -> None:
        """Gives back all memory and threads."""


class ZarrDali:
    """fn.readers.zarr in a DALI pipeline of nothing else; outputs are used where DALI puts them."""

    key = "zarr-dali"
    peer = False
    in_process = True
    # It tries who decodes fastest.
    warm_up_s = 0.8

    def __init__(
        self, device: str, *, shuffle: bool = False, decode: str = "auto", lazy: bool = False
    ) -> None:
        """`lazy`: the store is opened by the first batch, so that nothing is read before it."""
        self.name = (
            "zarr-dali" + (", shuffled" if shuffle else "") + ("" if decode == "auto" else f", {decode}")
        )
        self.device = device
        self.options = {"random_shuffle": shuffle, "seed": 1, "decode": decode, "lazy_init": lazy}
        self.pipe: Any = None

    def open(self, work: Work) -> None:
        import nvidia.dali.fn as fn
        from nvidia.dali import pipeline_def

        options: dict[str, Any] = self.options | {"path": str(work.store), "device": self.device}
        if work.storage_options:
            options["storage_options"] = work.storage_options
        if work.names:
            options["arrays"] = list(work.names)
        if work.window is not None:
            options["window"] = list(work.window)
        if work.steps < work.reports[0].shape[0]:
            options["roi_end"] = [work.steps]

        @pipeline_def(
            batch_size=work.batch_size, num_threads=1, device_id=0 if self.device == "gpu" else None
        )
        def pipeline() -> Any:
            outputs = fn.readers.zarr(name=READER, **options)
            return tuple(outputs) if isinstance(outputs, list) else outputs

        self.work = work
        self.pipe = pipeline()
        self.pipe.build()

    def batch(self) -> Any:
        # Without a stream, run() returns when the outputs are complete.
        return self.pipe.run()

    def to_host(self, batch: Any) -> tuple[list[int], list[np.ndarray]]:
        on_host = [_dali_to_host(output) for output in batch]
        # source_info ends with the index ranges, those of the window first: ".../raw.zarr[12, 0:6, 0:640]".
        places = [sample.source_info().rsplit("[", 1)[1].split(",") for sample in on_host[0]]
        depth = len(self.work.window or (1,))
        starts = [[int(part.strip(" ]").split(":")[0]) for part in place[:depth]] for place in places]
        return [self.work.sample_at(start) for start in starts], [output.as_array() for output in on_host]

    def stats(self) -> dict[str, Any]:
        """What the reader has counted since it was opened."""
        return zarr_dali.stats(self.pipe, READER)

    def close(self) -> None:
        self.pipe = None


# --- libraries that read ranges of an array -------------------------------------------------------


class _Ranges:
    """A library whose arrays are indexed by ranges; a batch is read by as few of them as it takes."""

    key = ""
    name = ""
    peer = True
    in_process = True
    warm_up_s = 0.0
    gpu_only = False
    folders_only = False
    """Whether it cannot be given a store that is no folder."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.module: Any = np
        """Has `stack` and `concatenate` for the arrays that a batch is made of."""
        self.opened: list[Any] = []
        if device == "gpu" and not self.gpu_only:
            self.module = importlib.import_module("torch")
            self.name += " .cuda()"

    def arrays(self, work: Work) -> list[Any]:
        """Opens the arrays."""
        raise NotImplementedError

    def read(self, selections: Sequence[Selection]) -> list[list[Any]]:
        """For each array: what it has in each of the ranges, as it comes from the library."""
        return [[array[selection] for selection in selections] for array in self.opened]

    def open(self, work: Work) -> None:
        if self.folders_only and not work.is_folder:
            raise ValueError("it is measured with folders only")
        self.work, self.opened, self.next = work, self.arrays(work), 0

    def batch(self) -> list[Any]:
        self.last = self.work.batch(self.next)
        self.next += 1
        spans = self.work.spans(self.last)
        found = self.read([selection for _, selection in spans])
        outputs = [self._assembled(spans, [self._on_device(part) for part in parts]) for parts in found]
        self.wait()
        return outputs

    def _on_device(self, values: Any) -> Any:
        if self.device == "gpu" and not self.gpu_only:
            return self.module.from_numpy(values).cuda()
        return values

    def _assembled(self, spans: list[tuple[list[int], Selection]], parts: list[Any]) -> Any:
        """The samples of one array. Windows are cut from the ranges on the device, where that costs least."""
        if self.work.window is None:
            return parts[0] if len(parts) == 1 else self.module.concatenate(parts)
        extent = self.work.window[0]
        return self.module.stack(
            [part[i : i + extent] for (run, _), part in zip(spans, parts) for i in range(len(run))]
        )

    def wait(self) -> None:
        """Until the device is done."""
        if self.device == "gpu":
            self.module.cuda.current_stream().synchronize()

    def to_host(self, batch: list[Any]) -> tuple[list[int], list[np.ndarray]]:
        return self.last, [self._on_host(output) for output in batch]

    def _on_host(self, output: Any) -> np.ndarray:
        return output if isinstance(output, np.ndarray) else output.cpu().numpy()

    def close(self) -> None:
        self.opened = []


class ZarrPython(_Ranges):
    """zarr-python with its own codec pipeline and default settings."""

    key = name = "zarr-python"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        importlib.import_module("zarr")

    def arrays(self, work: Work) -> list[Any]:
        return [work.open_array(number) for number in range(len(work.reports))]


class ZarrPythonZarrs(_Ranges):
    """zarr-python with the codec pipeline of the zarrs package."""

    key = "zarrs"
    name = "zarr-python + zarrs"
    folders_only = True

    def __init__(self, device: str) -> None:
        super().__init__(device)
        importlib.import_module("zarrs")

    def arrays(self, work: Work) -> list[Any]:
        import zarr

        # An array keeps the pipeline it was opened with. Strict: an error instead of the default pipeline.
        settings = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
        with zarr.config.set(settings):
            return [zarr.open_array(str(path), mode="r") for path in work.array_paths()]


class TensorStore(_Ranges):
    """tensorstore's drivers for zarr with default settings; all ranges of a batch at the same time."""

    key = name = "tensorstore"
    folders_only = True

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.tensorstore = importlib.import_module("tensorstore")

    def arrays(self, work: Work) -> list[Any]:
        specs = [
            {
                "driver": "zarr" if report.zarr_format == 2 else "zarr3",
                "kvstore": {"driver": "file", "path": f"{path.resolve()}/"},
            }
            for report, path in zip(work.reports, work.array_paths())
        ]
        return [self.tensorstore.open(spec, read=True).result() for spec in specs]

    def read(self, selections: Sequence[Selection]) -> list[list[Any]]:
        pending = [[array[selection].read() for selection in selections] for array in self.opened]
        return [[future.result() for future in futures] for futures in pending]


# --- libraries that read to the GPU ---------------------------------------------------------------


class _GpuRanges(_Ranges):
    """A library whose arrays give CuPy arrays."""

    gpu_only = folders_only = True

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.module = importlib.import_module("cupy")

    def wait(self) -> None:
        self.module.cuda.get_current_stream().synchronize()

    def _on_host(self, output: Any) -> np.ndarray:
        return self.module.asnumpy(output)


class ZarrPythonGpu(_GpuRanges):
    """zarr-python with `enable_gpu`."""

    key = "enable_gpu"
    name = "zarr-python enable_gpu"

    def arrays(self, work: Work) -> list[Any]:
        import zarr

        with zarr.config.enable_gpu():
            return [zarr.open_array(self.store(path), mode="r") for path in work.array_paths()]

    def store(self, path: Path) -> Any:
        """What zarr-python opens."""
        return str(path)

    def read(self, selections: Sequence[Selection]) -> list[list[Any]]:
        import zarr

        # The kind of buffer is chosen when it is made, that is while reading.
        with zarr.config.enable_gpu():
            return super().read(selections)


class KvikIO(ZarrPythonGpu):
    """zarr-python with `enable_gpu` over KvikIO's GDSStore."""

    key = "kvikio"
    name = "zarr-python enable_gpu, kvikio GDSStore"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.gds_store = importlib.import_module("kvikio.zarr").GDSStore

    def store(self, path: Path) -> Any:
        return self.gds_store(str(path), read_only=True)


class Czarr(_GpuRanges):
    """czarr's explicit API, which changes no global settings of zarr-python: cuFile, then nvCOMP."""

    key = name = "czarr"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.array = importlib.import_module("czarr.core").Array

    def arrays(self, work: Work) -> list[Any]:
        return [self.array.open(path) for path in work.array_paths()]

    def read(self, selections: Sequence[Selection]) -> list[list[Any]]:
        return [[array[(*selection, ...)] for selection in selections] for array in self.opened]


# --- loaders for training -------------------------------------------------------------------------


class _Samples:
    """A map-style dataset over zarr-python. Each worker process opens the arrays for itself."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.arrays: list[Any] | None = None

    def __getitem__(self, sample: int) -> list[np.ndarray]:
        if self.arrays is None:
            self.arrays = [self.work.open_array(number) for number in range(len(self.work.reports))]
        selection = self.work.selection(sample)
        values = [array[selection] for array in self.arrays]
        return [value[0] for value in values] if self.work.window is None else values


class _Batches:
    """Sample numbers of the batches of a `Work`, without end."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __iter__(self) -> Iterator[list[int]]:
        number = 0
        while True:
            yield self.work.batch(number)
            number += 1


class DataLoader:
    """A torch DataLoader over zarr-python: worker processes, pinned memory, an asynchronous copy."""

    key = "dataloader"
    name = "torch DataLoader"
    peer = True
    in_process = False
    warm_up_s = 0.0
    gpu_only = False

    def __init__(self, device: str) -> None:
        self.torch = importlib.import_module("torch")
        importlib.import_module("zarr")
        self.device = device
        self.workers = max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 2))
        self.name = f"torch DataLoader, {self.workers} worker{'s' * (self.workers > 1)}"
        self.name += ", pinned" if device == "gpu" else ""
        self.batches: Iterator[Any] | None = None

    def open(self, work: Work) -> None:
        self.work, self.number = work, -1
        loader = self.torch.utils.data.DataLoader(
            _Samples(work),
            batch_sampler=_Batches(work),
            num_workers=self.workers,
            pin_memory=self.device == "gpu",
            timeout=WORKER_TIMEOUT_S,
        )
        self.batches = iter(loader)

    def batch(self) -> list[Any]:
        outputs = next(self.batches)
        self.number += 1
        if self.device == "gpu":
            outputs = [output.cuda(non_blocking=True) for output in outputs]
            self.torch.cuda.current_stream().synchronize()
        return outputs

    def to_host(self, batch: list[Any]) -> tuple[list[int], list[np.ndarray]]:
        return self.work.batch(self.number), [output.cpu().numpy() for output in batch]

    def close(self) -> None:
        self.batches = None


class _DaliPeer:
    """A DALI pipeline that reads the batches of a `Work` in order."""

    key = ""
    name = ""
    peer = True
    in_process = True
    warm_up_s = 0.0
    gpu_only = False

    def __init__(self, device: str) -> None:
        self.device = device
        self.pipe: Any = None

    def outputs(self, work: Work) -> list[Any]:
        """The pipeline's nodes, one for each array."""
        raise NotImplementedError

    def open(self, work: Work) -> None:
        from nvidia.dali import Pipeline

        self.work, self.number = work, -1
        device_id = 0 if self.device == "gpu" else None
        threads = len(os.sched_getaffinity(0))
        self.pipe = Pipeline(batch_size=work.batch_size, num_threads=threads, device_id=device_id)
        with self.pipe:
            nodes = self.outputs(work)
            self.pipe.set_outputs(*(node.gpu() if self.device == "gpu" else node for node in nodes))
        self.pipe.build()

    def batch(self) -> Any:
        self.number += 1
        return self.pipe.run()

    def to_host(self, batch: Any) -> tuple[list[int], list[np.ndarray]]:
        return self.work.batch(self.number), [_dali_to_host(output).as_array() for output in batch]

    def close(self) -> None:
        self.pipe = None


class ExternalSource(_DaliPeer):
    """DALI's external_source, which calls zarr-python."""

    key = "external_source"
    name = "DALI external_source, zarr-python"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.source = ZarrPython("cpu")

    def outputs(self, work: Work) -> list[Any]:
        import nvidia.dali.fn as fn

        self.source.open(work)
        return fn.external_source(source=self.source.batch, num_outputs=len(work.reports), batch=True)

    def close(self) -> None:
        super().close()
        self.source.close()


class NpyCopies:
    """The samples of stores as .npy files, raw, in a temporary folder that goes with this object."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where the temporary folder lies; by default where Python puts them."""
        self.folder = folder
        self.kept: dict[tuple[Any, ...], tuple[tempfile.TemporaryDirectory[str], list[list[str]]]] = {}

    def files(self, work: Work) -> list[list[str]]:
        """The files of each array, one for each sample; written when they are first asked for."""
        if work.window is not None and (len(work.window) > 1 or work.window[0] > 1):
            raise ValueError("a file holds one sample, and windows overlap")
        key = (work.store, work.names, work.window, work.steps)
        if key not in self.kept:
            where = tempfile.TemporaryDirectory(prefix="zarr-dali-npy-", dir=self.folder)
            source = ZarrPython("cpu")
            source.open(work)
            names = [
                [f"{where.name}/{number}-{sample:08}.npy" for sample in range(work.samples)]
                for number in range(len(work.reports))
            ]
            for _ in range(work.batches):
                samples, arrays = source.to_host(source.batch())
                for files, values in zip(names, arrays):
                    for sample, value in zip(samples, values):
                        np.save(files[sample], value)
            self.kept[key] = (where, names)
        return self.kept[key][1]


class ReadersNumpy(_DaliPeer):
    """DALI's readers.numpy on the CPU, then `.gpu()`, on copies of the samples in .npy files."""

    key = "readers.numpy"
    name = "DALI readers.numpy, .npy files"
    reader_device = "cpu"

    def __init__(self, device: str, copies: NpyCopies) -> None:
        super().__init__(device)
        importlib.import_module("zarr")
        self.copies = copies
        self.name += ", cpu then .gpu()" if device == "gpu" and self.reader_device == "cpu" else ""

    def outputs(self, work: Work) -> list[Any]:
        import nvidia.dali.fn as fn

        return [fn.readers.numpy(files=files, device=self.reader_device) for files in self.copies.files(work)]


class ReadersNumpyGpu(ReadersNumpy):
    """DALI's readers.numpy on the GPU, which reads with cuFile."""

    key = "readers.numpy-gpu"
    name = "DALI readers.numpy, .npy files, gpu"
    reader_device = "gpu"
    gpu_only = True


PEERS: tuple[Any, ...] = (
    ZarrPython,
    ZarrPythonZarrs,
    TensorStore,
    DataLoader,
    ZarrPythonGpu,
    KvikIO,
    Czarr,
    ExternalSource,
)
NPY_PEERS: tuple[Any, ...] = (ReadersNumpy, ReadersNumpyGpu)
"""Those that need a copy of the data."""
KEYS = tuple(peer.key for peer in (*PEERS, *NPY_PEERS))


def peers(
    device: str, keys: Sequence[str] = KEYS, copies: NpyCopies | None = None
) -> Iterator[tuple[str, Loader | None, str]]:
    """The peers with these keys that run on the device: name, loader and, where there is none, the reason.

    Without `copies` those that need them are left out.
    """
    made = [(peer, ()) for peer in PEERS] + [(peer, (copies,)) for peer in NPY_PEERS if copies is not None]
    for peer, arguments in made:
        if peer.key not in keys or (peer.gpu_only and device != "gpu"):
            continue
        try:
            loader = peer(device, *arguments)
        except ImportError as error:
            yield peer.name, None, f"not installed ({error.name or error})"
        else:
            yield loader.name, loader, ""


def _dali_to_host(output: Any) -> Any:
    return output.as_cpu() if hasattr(output, "as_cpu") else output
