"""What a reader would do with a store, asked of the plugin."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from zarr_dali import (
    _advice,
    _core,
    _dimensions,
    _locations,
    _normalize,
    _offsets,
    _ome_store,
    _outputs,
    _plugin,
)
from zarr_dali._description import Advice, ArrayReport, Output, Reading

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Info:
    """What `info` found. `str()` of it is the report that `zarr-dali info` prints."""

    path: tuple[str, ...]
    """Without queries of URLs, which may be signatures."""
    device: str
    arguments: dict[str, Any]
    """The reader's arguments that were given."""
    arrays: tuple[ArrayReport, ...]
    together: Reading | None = None
    """One reader of all arrays, if more than one was named."""
    problem: str | None = None
    """Why there is no such reader."""
    advice: tuple[Advice, ...] = field(default=())

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Arrays, besides coordinates, that are refused or have no reader with these arguments."""
        wrong = (one for one in self.arrays if one.decode_path == "refused" or one.problem)
        return tuple(one.name for one in wrong if not one.coordinate)

    def to_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, numbers and texts."""
        values = asdict(self)
        for array, report in zip(values["arrays"], self.arrays):
            array["ratio"] = report.ratio
        return json.loads(json.dumps(values))

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict()` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def __rich__(self) -> RenderableType:
        """The report for a console of rich."""
        from zarr_dali import _report  # rich is only needed here

        return _report.Report(
            self.path, self.arguments, self.arrays, self.together, self.problem, self.advice
        )

    def __str__(self) -> str:
        from zarr_dali import _report

        return _report.as_text(self.__rich__())


def info(
    path: _locations.Source | Sequence[_locations.Source],
    arrays: str | Iterable[str] | None = None,
    *,
    device: Literal["gpu", "cpu"] = "gpu",
    level: int | None = None,
    labels: str | Iterable[str] = (),
    **reader_arguments: Any,
) -> Info:
    """Says of each array of a store what it is and how a reader would read it.

    Reads metadata and the sizes of files, no chunk.

    Args:
        path: As for `fn.readers.zarr`, or an object that stands for a store, as for `Loader`.
        arrays: Names of arrays; by default all that the store has, each as a reader of its own.
        device: The reader's backend. `"gpu"` can be asked for on a machine without one: what depends on the
            memory that is free there is left out.
        level: Of OME-Zarr, in place of `arrays`: the resolution level of an image, as for `Loader`. Of a
            plate or a well all images are described together, as `join="separate"` reads them.
        labels: Of OME-Zarr: names of labels beside the image, as for `Loader`.
        **reader_arguments: Further arguments of `fn.readers.zarr`, and `batch_size` and `device_id` (default
            0) of the pipeline.

    Raises:
        ValueError: There is no store, no array of a name, or an argument cannot be used. An array that
            cannot be read is no error: its `decode_path` is "refused".
        TypeError: An object that stands for no store, or a `dtype` that is no type.
    """
    if device not in ("gpu", "cpu"):
        raise ValueError(f'argument `device`: "{device}" is neither "gpu" nor "cpu"')
    arrays = [arrays] if isinstance(arrays, str) else arrays and list(arrays)
    location = _locations.located(path, reader_arguments.pop("storage_options", None), arrays or ())
    if location.storage_options is not None:
        reader_arguments["storage_options"] = location.storage_options
    reader_arguments = _offsets.reader_arguments(reader_arguments)
    if arrays is None:
        arrays = location.arrays or None
    elif arrays:
        arrays, _ = location.named(arrays, None, False)
    given = {name: _plain(name, value) for name, value in reader_arguments.items() if value is not None}
    paths = location.paths
    opening = location.storage_options, given.get("follow_links", True)
    if level is not None or labels:
        images = _ome_store.asked(paths, arrays or (), level, labels or (), *opening)
        paths, arrays = images.paths, images.arrays
    elif arrays is None:
        paths = _ome_store.collection(paths, *opening) or paths
    elif images := _ome_store.asked(paths, arrays, None, (), *opening):
        paths = images.paths
    if len(paths) > 1 and paths != location.paths:
        given.setdefault("join", "separate")
    if arrays is not None:
        given["arrays"] = arrays
    asked = {"device_id": 0} | given | {"path": paths}
    if device == "cpu":
        asked["device_id"] = -1
    answer = _describe(asked)
    reports = _placed(tuple(ArrayReport.of(array) for array in answer["arrays"]), asked, answer["together"])
    together, problem = Reading.of(answer["together"])
    return Info(
        path=tuple(_core.without_secrets(one) for one in location.paths),
        device=device,
        # Without what may be secret.
        arguments={name: value for name, value in given.items() if name != "storage_options"},
        arrays=reports,
        together=together,
        problem=problem,
        advice=tuple(Advice(*found) for found in _advice.of(reports, device, given)),
    )


def _placed(
    reports: tuple[ArrayReport, ...], asked: dict[str, Any], together: dict[str, Any] | None
) -> tuple[ArrayReport, ...]:
    """Reports with the place of each array among the others: its dimensions, coordinates, static arrays."""
    names = [report.name for report in reports]
    options = asked.get("storage_options")
    (store, *_) = _core.expand(asked["path"], options)
    opened = _core.Objects(store, options, follow_links=asked.get("follow_links", True), soon=True)
    nodes = _dimensions.nodes_of(opened, names)
    # An array that is asked for by name is not there for the sake of others.
    coordinates = set() if asked.get("arrays") else _dimensions.coordinates_of(nodes, names)
    placed = [
        replace(
            report,
            dimensions=its if len(its := nodes[report.name].dimensions) == len(report.shape) else (),
            axes=its
            if len(its := _ome_store.axes_of(nodes, report.name, store)) == len(report.shape)
            else (),
            coordinate=report.name in coordinates,
        )
        for report in reports
    ]
    placed = [
        replace(report, problem=None)
        if report.problem and _is_read_beside(_ome_store.image_beside(nodes, report.name), report, asked)
        else report
        for report in placed
    ]
    static = _static([report for report in placed if not report.coordinate], asked, together)
    return tuple(
        replace(report, static=static[report.name], reading=None, problem=None)
        if report.name in static
        else report
        for report in placed
    )


def _is_read_beside(image: str | None, labels: ArrayReport, asked: dict[str, Any]) -> bool:
    """Whether a reader that is none of labels alone is one of an image and these."""
    if image is None:
        return False
    try:
        together = _describe(_of_all(asked) | {"arrays": [image, labels.name]})["together"]
    except (ValueError, RuntimeError):
        return False
    return Reading.of(together)[0] is not None


def _of_all(asked: dict[str, Any]) -> dict[str, Any]:
    """The arguments without those that are said of each array."""
    return {name: value for name, value in asked.items() if name not in ("mean", "std", "stack")}


def _static(
    reports: Sequence[ArrayReport], asked: dict[str, Any], together: dict[str, Any] | None
) -> dict[str, Output]:
    """Outputs of the arrays that lack the first dimension of the one with the most."""
    readable = [report for report in reports if report.decode_path != "refused"]
    reference = max(readable, key=lambda report: len(report.shape), default=None)
    if reference is None:
        return {}
    rest = set(reference.dimensions[1:])
    static = [report.name for report in readable if report.dimensions and rest.issuperset(report.dimensions)]
    names = [reference.name, *static]
    if not static:
        return {}
    if asked.get("arrays") and not asked.get("stack"):
        names = [report.name for report in reports]
    else:
        try:
            together = _describe(_of_all(asked) | {"arrays": names})["together"]
        except (ValueError, RuntimeError):
            return {}
    outputs = Reading.of(together)[0].outputs if together and "problem" not in together else ()
    if len(outputs) != len(names):
        return {}
    return {name: output for name, output in zip(names, outputs) if name in static}


def _plain(name: str, value: Any) -> Any:
    """An argument as JSON can hold it. What DALI takes as a list it also takes as a single value."""
    value = list(value) if isinstance(value, (range, Iterator)) else value
    if name in ("window", "stride", "mean", "std"):
        value = value.tolist() if hasattr(value, "tolist") else value
        return list(value) if isinstance(value, (list, tuple)) else [value]
    if name in ("samples", "weights") and not isinstance(value, (str, os.PathLike)):
        return json.dumps(value.tolist() if hasattr(value, "tolist") else list(value))
    if name == "storage_options" and not isinstance(value, str):
        return _core.as_json(value)
    if name == "normalize":
        return _normalize.as_json(value)
    if name == "select":
        return value if isinstance(value, str) else json.dumps(value)
    if name == "cache_dir":
        return os.fspath(value)
    if name == "dtype":
        return _outputs.dali_name(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _describe(arguments: dict[str, Any]) -> dict[str, Any]:
    """Asks the plugin."""
    library = _plugin.core()
    describe, free = library.zarr_dali_describe, library.zarr_dali_free_text
    describe.argtypes, describe.restype = [ctypes.c_char_p], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None
    text = describe(json.dumps(arguments).encode())
    try:
        answer = json.loads(ctypes.string_at(text))
    finally:
        free(text)
    if "error" in answer:
        raise {"argument": ValueError, "runtime": RuntimeError}[answer["kind"]](answer["error"])
    return answer
