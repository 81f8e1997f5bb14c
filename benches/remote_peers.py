"""Other clients of stores behind a web server, for `remote.py`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zarr_dali._bench import timing
from zarr_dali._bench.loaders import _Ranges
from zarr_dali._bench.work import Work


class TensorStore(_Ranges):
    """tensorstore's drivers over HTTP with default settings; all ranges of a batch at the same time."""

    key = name = "tensorstore"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.tensorstore = importlib.import_module("tensorstore")

    def arrays(self, work: Work) -> list[Any]:
        spec = {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": f"{work.store}/"}}
        return [self.tensorstore.open(spec, read=True).result()]

    def read(self, selections: Sequence[Any]) -> list[list[Any]]:
        pending = [[array[selection].read() for selection in selections] for array in self.opened]
        return [[future.result() for future in futures] for futures in pending]


class ZarrPython(_Ranges):
    """zarr-python over obstore with default settings."""

    key = name = "zarr-python, obstore"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        importlib.import_module("obstore")

    def arrays(self, work: Work) -> list[Any]:
        import zarr
        from obstore.store import HTTPStore

        store = HTTPStore.from_url(str(work.store), client_options={"allow_http": True})
        return [zarr.open_array(zarr.storage.ObjectStore(store, read_only=True), mode="r")]


class ZarrPythonZarrs(ZarrPython):
    """zarr-python over obstore with the codec pipeline of the zarrs package, which reads HTTP by itself."""

    key = name = "zarr-python + zarrs"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        importlib.import_module("zarrs")

    def arrays(self, work: Work) -> list[Any]:
        import zarr

        settings = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}
        with zarr.config.set(settings):
            return super().arrays(work)


PEERS: tuple[Any, ...] = (TensorStore, ZarrPython, ZarrPythonZarrs)


def timed(
    device: str, url: str, path: Path, batch_size: int, seconds: float, names: Sequence[str] | None
) -> dict[str, dict[str, Any]]:
    """Times all peers, whose first batch has to be that of the local store.

    Returns:
        Of each `gb_per_s` of decoded values, or a `problem`.
    """
    work = Work.of(url, batch_size=batch_size)
    expected = timing.Expected(Work.of(path, batch_size=batch_size))
    rows: dict[str, dict[str, Any]] = {}
    for peer in PEERS:
        if names is not None and peer.key not in names:
            continue
        row = timing.Row()
        try:
            loader = peer(device)
            timing.verify(loader, work, expected, 1)
            timing.timed(loader, row, work, seconds / 2)
            rows[peer.key] = {"gb_per_s": row.median, "cpu_cores": row.cpu_cores[0]}
        except ImportError as error:
            rows[peer.key] = {"problem": f"not installed ({error.name or error})"}
        except Exception as error:
            rows[peer.key] = {"problem": timing.gist(error)}
    return rows
