"""Batches of torch tensors without a pipeline to write: one DALI pipeline and DALI's iterator underneath."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from zarr_dali import (
    _element_types,
    _loader_arguments,
    _loader_checks,
    _locations,
    _normalize,
    _ome_store,
    _outputs,
    _place,
    _samples,
    _store_coordinates,
    _values,
)
from zarr_dali._locations import Paths
from zarr_dali._place import Place

if TYPE_CHECKING:
    import torch
    from nvidia.dali import Pipeline
    from nvidia.dali.data_node import DataNode

READER = "reader"


class Loader:
    """Batches of a Zarr store as dictionaries of torch tensors, for training loops and for PyTorch Lightning.

        loader = zarr_dali.Loader("era5.zarr", ["t2m", "msl"], 8, window=[2], shuffle=True)
        for batch in loader:  # one epoch; loop again for the next
            x, y = batch["t2m"][:, 0], batch["t2m"][:, 1]

    Each `for` is one epoch. After a `break` the next one starts with the next epoch; only after
    `load_state_dict` it goes on inside an epoch. The tensors belong to whoever holds them: they stay valid
    after the next batch and without the loader.

    With several ranks each reads its own part of the samples, another one in each epoch unless
    `stick_to_shard=True`, and all take the same number of steps. The last batch has only the samples that
    are left; a rank that has none left then, because its part is the shorter one, repeats one sample. With
    `drop_last` every batch is full on every rank.

    Attributes:
        epoch: The epoch that the next batch belongs to.
    """

    def __init__(
        self,
        path: Paths,
        arrays: str | Sequence[str] | None = (),
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        device: str | torch.device = "cuda",
        seed: int | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        names: str | Sequence[str] | Mapping[str, str] | None = None,
        level: int | None = None,
        labels: str | Sequence[str] = (),
        select: Mapping[str, Any] | None = None,
        gaps: Literal["error", "skip", "allow"] | None = None,
        dtype: Any = None,
        layout: str | Sequence[str | None] | Mapping[str, str] | None = None,
        graph: Callable[[dict[str, DataNode]], Any] | None = None,
        transform: Callable[[dict[str, torch.Tensor]], Any] | None = None,
        num_threads: int = 2,
        prefetch: int = 2,
        **reader_arguments: Any,
    ) -> None:
        """Opens the store; nothing is read yet.

        Args:
            path: A Zarr array, or a group together with `arrays`; a list or a pattern is joined along the
                first dimension, or with `join="separate"` read store by store. A path or URL, or an object
                that stands for a store: a store, group or array of zarr-python 3 (on disk, of fsspec, obstore
                or Icechunk), or a Dataset or DataArray as `xarray.open_zarr` returned it, whose variables
                then are `arrays` unless some are named, and with `mask_and_scale` if xarray decodes them.
            arrays: Paths of arrays inside the group: the keys of a batch. Without it the key is "data", as
                with `stack`.
            batch_size: Samples of a batch, of each rank.
            shuffle: A new random order in every epoch.
            device: Where the tensors are and chunks are decoded: "cuda" (the current device), "cuda:1" or
                "cpu".
            seed: Of the order; 0 if not given. The same on all ranks.
            drop_last: Leave out the samples that do not fill a batch on every rank.
            rank: The number of this process among those that share the samples; that of torch.distributed if
                it is initialised, else 0.
            world_size: How many processes share the samples; those of torch.distributed if it is initialised,
                else 1.
            names: Keys of a batch in place of the arrays' names, one for each output, or a dictionary with
                some by the arrays' names; with `return_index=True` the last one is that of the indices,
                "index" if not given.
            level: Of OME-Zarr: the resolution level that is read, 0 for the highest, which is the default, in
                place of `arrays`. `path` is an image, or a plate, a well or a list of images, which then are
                read with `join="separate"`. The key of a batch is "image", those of labels are their names.
            labels: Of OME-Zarr: names of labels, which are read beside the image at the same level: the same
                part of each axis that they share with it, and all of an axis along which they have one index.
            select: Labels, as `zarr_dali.select` takes them: `select={"time": slice("2010", "2015")}`.
                `offsets` may hold time spans with or without it; what `exclude` holds are labels with it, and
                without it indices, or labels if they are texts, times, slices or a mask.
            gaps: What becomes of samples of several steps where the coordinate of the first dimension has a
                gap, as `zarr_dali.select` takes it. Without it "error" if `offsets` are time spans; else they
                are allowed, and a warning names the first gap, if there is such a coordinate and xarray to
                read it.
            dtype: Element type of all outputs, as a type or name of NumPy, torch or DALI, rounded and
                saturated as the reader does; a list with one for each of `arrays`; or a dictionary with some
                by the arrays' names or by their keys in a batch (see `names`): `dtype={"label": "int64"}`.
                Names that only `graph` returns are cast behind it, by `fn.cast`; all others are what it gets.
                None leaves a type as it is. "bfloat16" is made of float32 on the device. What DALI cannot
                hand to torch (uint16, uint32, uint64) is refused.
            layout: DALI's layout of a sample, a letter for each dimension, for operators that ask for one:
                for all outputs, a list with one for each, or a dictionary with some as in `dtype`. By
                default made from the names of the dimensions. No value is moved by it.
            graph: A function that puts operators of DALI between the reader and the batch, on the same
                device: it gets a dictionary of DALI's nodes by name and returns one, whose keys are those of
                a batch, or as many nodes as it got. It is called whenever the pipeline is built. Random
                operators draw new numbers for each batch; after `load_state_dict` and after a `break` they
                begin anew, with numbers that depend on `seed`, rank and place.
            transform: A function that gets each batch, a dictionary of tensors, in the process and thread of
                the training. What it returns is the batch.
            num_threads: Threads of the pipeline. The reader has its own, see `num_io_threads`.
            prefetch: Batches that are kept ready besides those that the reader has in flight.
            **reader_arguments: Of `fn.readers.zarr`: `window`, `stride`, `offsets` (a list for the
                first dimension, or by dimensions as in `{"lead_time": ["0h", "3D"]}`), `stack`
                (True, or "channels": levels and arrays as channels, named by `loader.channels`),
                `mask_and_scale`, `mean`, `std`, `return_index`, `decode`, `follow_links`, memory budgets (in
                bytes, or as in "4GB") and others; `storage_options` as a dictionary. `normalize` as a
                dictionary by names or keys as `dtype`, JSON or the name of a file of JSON; statistics with
                `labels` are chosen by these, for what `select` takes. `samples`, `weights` and
                `samples_per_epoch` as `set_samples` takes them, `mask`. In `mean` and `std` a list may stand
                for an array: `mean=[[220, 250], 280]` has one number for each index of the first dimension
                behind those of the window.

        Raises:
            ValueError: Arguments or the store do not fit.
            TypeError: There is no such argument, or it is of a wrong type.
            RuntimeError: There is no such GPU, or this is a worker process of a torch DataLoader.
        """
        _loader_checks.import_torch()
        _loader_checks.refuse_workers()
        _loader_checks.check_names(reader_arguments, inspect.signature(Loader).parameters)
        self.batch_size = _values.whole("batch_size", batch_size, 1, _values.MOST_OF_32_BITS)
        self.drop_last = _values.truth("drop_last", drop_last)
        self.device = _loader_checks.device_of(device)
        self._distributed = rank is None and world_size is None
        self.rank, self.world_size = _loader_checks.rank_and_size(rank, world_size)

        arrays = _loader_arguments.array_names(arrays)
        location = _locations.located(path, reader_arguments.get("storage_options"), arrays)
        path, reader_arguments = location.path, location.arguments(reader_arguments)
        self._samples, reader_arguments = _samples.taken_from(reader_arguments)
        arrays, names = location.named(arrays, names, bool(reader_arguments.get("stack")))
        follow_links = reader_arguments.get("follow_links", True)
        self._images: dict[str, str] = {}
        """Names of arrays that are levels of OME-Zarr images."""
        images = _ome_store.asked(
            location.paths, arrays, level, labels, location.storage_options, follow_links
        )
        if images is not None:
            path, arrays, self._images = images.path, images.arrays, images.called
            reader_arguments = images.with_arguments(reader_arguments)
            names = images.names if names is None and not reader_arguments.get("stack") else names
        arguments = _loader_arguments.with_text_options(
            {name: _loader_arguments.plain(value) for name, value in reader_arguments.items()}
        )
        if transform is not None and not callable(transform):
            raise TypeError(f"transform: has to be a function of a batch, not {type(transform).__name__}")
        self._transform = transform
        arguments = _normalize.reader_arguments(arguments, arrays)
        arguments |= _loader_arguments.stacking(arguments.pop("stack", None))
        # These may be labels and time spans, of which indices are made first.
        arguments = _values.of_reader(arguments, without=("offsets", "exclude"))
        opened = _store_coordinates.Once()
        arguments = _loader_arguments.with_selection(path, arrays, select, arguments, gaps, opened)
        arguments = _values.of_reader(arguments)
        names = _outputs.names_of(arrays, arguments, names)
        each = _outputs.arrays_of(arrays, arguments, names)
        arguments = _normalize.by_array(arguments, arrays, names[: len(each)])
        arguments = _normalize.by_label(
            arguments,
            arrays,
            lambda: opened(
                path, arrays or None, arguments.get("follow_links", True), arguments.get("storage_options")
            ),
        )
        arguments["dtype"], self._outputs = _outputs.outputs_of(
            names,
            each,
            dtype=dtype,
            layout=layout,
            graph=graph,
            sources=lambda: _element_types.output_types(arrays, arguments),
        )
        self.names: list[str] = []
        """Keys of a batch, known once the pipeline is built."""
        self._array_names = names if len(names) >= len(arrays) else arrays
        """Keys of the arrays."""
        self._channels: list[str] | None = None
        self._reader = arguments | {
            "arrays": arrays or None,
            "device": self.device.type.replace("cuda", "gpu"),
            "random_shuffle": _values.truth("shuffle", shuffle),
            "seed": 0 if seed is None else _values.whole("seed", seed),
            "shard_id": self.rank,
            "num_shards": self.world_size,
            "pad_last_batch": True,
        }
        self._settings = {
            "batch_size": self.batch_size,
            "num_threads": _values.whole("num_threads", num_threads, 1, _values.MOST_OF_32_BITS),
            "device_id": self.device.index,
            "prefetch_queue_depth": _values.whole("prefetch", prefetch, 1, _values.MOST_OF_32_BITS),
        }
        self._process = os.getpid()
        self._closed = False
        self._place = Place()
        """Of the batch that is handed out next."""
        self._resume = False
        """Whether the next iteration goes on at `_place` even in the middle of an epoch."""
        self._turn: object = None
        """The iteration that is under way."""
        self._identity: dict[str, Any] = {}
        """What a state says about the reader besides the place."""
        self._pipeline: Pipeline | None = None
        self._build(self._place)
        self._identity = self._read_identity()
        self._channel_indices = self._read_stats()["channels"]
        self._check_length()
        if graph is None and arguments["dtype"] is None:
            _element_types.refuse_lacking(self._outputs, arrays, arguments)

    def __len__(self) -> int:
        """Batches of a whole epoch, the same on all ranks."""
        return self._batches(Place())

    @property
    def epoch(self) -> int:
        return self._place.epoch

    @property
    def channels(self) -> list[str] | None:
        """What the channels are with `stack="channels"`: arrays, and levels by their labels as in `q_500`, or
        by their indices where there is no coordinate; None without it."""
        if self._channels is None and self._channel_indices is not None:
            from zarr_dali import _channels

            options = {name: self._reader.get(name) for name in ("follow_links", "storage_options")}
            self._channels = _channels.names(
                self._channel_indices, self._reader["path"], options, self._images
            )
        return self._channels

    @property
    def scale(self) -> dict[str, dict[str, float]]:
        """Of OME-Zarr: for each array, by its key in a batch, how far apart indices are along each axis, in
        the units that `zarr_dali.info` names; of several images those of the first. Other arrays have none.
        """
        path = self._reader["path"]
        return _ome_store.scale_of(
            [path] if isinstance(path, (str, os.PathLike)) else path,
            dict(zip(self._array_names, self._reader["arrays"] or [])),
            self._reader.get("storage_options"),
            self._reader.get("follow_links", True),
        )

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """The batches of one epoch. Nothing happens before the first is asked for."""
        self._check()
        return self._iterate()

    def __getitem__(self, _: Any) -> NoReturn:
        raise TypeError(
            "a Loader has no samples by number, and needs no torch DataLoader around it: iterate over it "
            "directly, `for batch in loader`; it makes the batches, shuffles them and reads ahead itself, on "
            "threads"
        )

    def set_epoch(self, epoch: int) -> None:
        """Has the next iteration be this epoch, from its start; after `load_state_dict` to it, its rest."""
        epoch = _values.whole("epoch", epoch)
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}, but the first is 0")
        if not (epoch == self._place.epoch and (self._resume or self._place.is_start)):
            self._place, self._resume, self._turn = Place(epoch), False, None

    def set_samples(
        self, samples: Any = None, weights: Any = None, *, samples_per_epoch: int | None = None
    ) -> None:
        """Has the epochs from now on have other samples, as if the loader had been made with these arguments.

        To be called between epochs, on all ranks with the same lists; what is left of an epoch that was
        broken off is given up. With what the loader has already it changes nothing: after `load_state_dict`
        the rest of the epoch goes on. Otherwise the reader is built anew, which takes as long as to make a
        loader, and no batch of another list is ever handed out.

        Args:
            samples: The samples to read, named by indices: a row for each as `return_index` gives them, or
                one number where one names a sample. All samples without it.
            weights: One for each sample, in their order: they are drawn with replacement. Needs `shuffle`.
            samples_per_epoch: Samples of an epoch, of all ranks together. As many as there are without it.

        Raises:
            ValueError: The lists do not fit the store or each other; the loader keeps what it had. Or the
                loader stands in the middle of an epoch of other samples, by `load_state_dict`.
        """
        self._check()
        chosen = _samples.Samples(samples, weights, samples_per_epoch)
        if chosen == self._samples:
            return
        place = self._place
        if not place.is_start:
            if self._resume:
                raise ValueError(
                    f"set_samples: the state that was loaded is in the middle of epoch {place.epoch}, which "
                    "has other samples; finish it first, or begin another epoch with set_epoch"
                )
            place = Place(place.epoch + 1)
        before, self._samples = self._samples, chosen
        try:
            self._build(place, {"seed": self._identity["seed"]})
            self._check_length()
        except BaseException:
            self._samples = before
            self._build(place, self._identity)
            raise
        self._identity = self._read_identity()
        self._place, self._turn = place, None

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands behind the batch handed out last: for JSON, and the same on all ranks."""
        return self._place.counters(self.world_size, self.batch_size) | self._identity

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Has the next iteration go on behind the batch that was the last one when `state_dict` was called.

        The state may come from another number of ranks or another batch size: what is left of the epoch is
        then shared out anew. Each rank loads the same state.

        Raises:
            ValueError, RuntimeError: The state is of another version, or of a reader with other data or
                another order.
        """
        self._check()
        place = _place.of_state(state_dict, self.world_size, self.batch_size)
        identity = _place.identity_of(state_dict)
        if self._batches(place) <= place.batch:
            place = Place(place.epoch + 1)
        self._build(place, identity)
        self._identity = self._read_identity()
        self._place, self._resume, self._turn = place, True, None

    def stats(self) -> dict[str, Any]:
        """Counters of the reader, as `zarr_dali.stats` gives them, anew after an epoch was broken off."""
        from zarr_dali._stats import stats

        self._check()
        if self._pipeline is None:
            self._build(self._place)
        return stats(self._pipeline, READER)

    def close(self) -> None:
        """Ends the reader and gives its memory back. Tensors stay valid."""
        self._closed = True
        self._drop()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise RuntimeError(
            "a Loader cannot be pickled or copied: make it in the process that iterates over it, and do not "
            "wrap it in a torch DataLoader, since it reads ahead on threads of its own"
        )

    def _iterate(self) -> Iterator[dict[str, torch.Tensor]]:
        self._check()
        self._turn = turn = object()
        place = self._place if self._resume or self._place.is_start else Place(self._place.epoch + 1)
        self._place, self._resume = place, False
        if self._pipeline is None or self._ready != place:
            self._build(place, self._identity)
        for _ in range(self._surplus):
            self._run()
        self._surplus = 0
        part, total = self._part(place), self._batches(place)
        for batch in range(place.batch, total):
            self._check()
            if self._turn is not turn:
                raise RuntimeError(
                    "another iteration over this Loader has begun, or it was set to another place: only one "
                    "iteration goes on at a time"
                )
            tensors = self._run()
            valid = min(max(part - batch * self.batch_size, 1), self.batch_size)
            if batch + 1 < total:
                self._place = self._ready = place._replace(batch=batch + 1)
            else:
                self._place = self._ready = Place(place.epoch + 1)
                # With `drop_last` the reader has one more batch of this epoch.
                self._surplus = self._batches(place, drop_last=False) - total
            if valid < self.batch_size:
                tensors = {name: tensor[:valid] for name, tensor in tensors.items()}
            tensors = self._outputs.of_batch(tensors)
            yield tensors if self._transform is None else self._transform(tensors)

    def _run(self) -> dict[str, torch.Tensor]:
        """The pipeline's next batch."""
        try:
            (tensors,) = next(self._batches_of_pipeline)
        except BaseException as error:
            # Where the pipeline stands is not known now.
            self._drop()
            self._outputs.explain(error)
            raise
        return tensors

    def _build(self, place: Place, identity: Mapping[str, Any] | None = None) -> None:
        """A new pipeline that stands at a place, instead of the old one."""
        from nvidia.dali import Pipeline, fn
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        self._drop()
        arguments = self._reader | self._samples.arguments
        if identity or place != Place():
            position = place.counters(self.world_size, self.batch_size) | dict(identity or {})
            arguments["position"] = json.dumps(position)
        seed = {} if self._outputs.graph is None else {"seed": self._seed_of_operators(place)}
        pipeline = Pipeline(**self._settings, **seed)
        with pipeline:
            nodes = self._outputs.nodes(fn.readers.zarr(name=READER, **arguments))
            pipeline.set_outputs(*nodes.values())
        try:
            pipeline.build()
        except Exception as error:
            self._outputs.explain(error)
            raise
        self.names = list(nodes)
        self._count = pipeline.reader_meta(READER)["epoch_size"]
        # Without `size` it goes on and on; batches are counted here.
        self._batches_of_pipeline = DALIGenericIterator([pipeline], self.names, prepare_first_batch=False)
        self._pipeline, self._ready, self._surplus = pipeline, place, 0

    def _seed_of_operators(self, place: Place) -> int:
        """Of the random operators in `graph`: other numbers on each rank, and wherever a pipeline begins."""
        given = [self._reader["seed"], self.rank, place.epoch, place.batch, len(place.played)]
        return int(np.random.SeedSequence([number % 2**64 for number in given]).generate_state(1)[0] >> 1)

    def _drop(self) -> None:
        self._pipeline = self._batches_of_pipeline = None

    def _read_stats(self) -> dict[str, Any]:
        from zarr_dali._stats import stats

        return stats(self._pipeline, READER)

    def _read_identity(self) -> dict[str, Any]:
        return _place.identity_of(self._read_stats()["position"])

    def _batches(self, place: Place, drop_last: bool | None = None) -> int:
        """Batches on each rank behind what was played of an epoch."""
        left = place.left(self._count)
        if self.drop_last if drop_last is None else drop_last:
            return left // self.world_size // self.batch_size
        return math.ceil(math.ceil(left / self.world_size) / self.batch_size)

    def _check_length(self) -> None:
        if len(self) == 0:
            raise ValueError(
                f"drop_last: {self._count} samples do not fill one batch of batch_size={self.batch_size} on "
                f"each of {self.world_size} ranks"
            )

    def _part(self, place: Place) -> int:
        """Samples of this rank behind what was played of an epoch."""
        stick = self._reader.get("stick_to_shard")
        part = self.rank if stick else (self.rank + place.epoch) % self.world_size
        return _place.parts(place.left(self._count), self.world_size)[part]

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("this Loader is closed")
        if os.getpid() != self._process:
            raise RuntimeError(
                "this Loader was made before the process was forked, and a forked child has none of its "
                'threads: make a Loader in the child itself (with device="cpu"), or start processes with the '
                'method "spawn"'
            )
        _loader_checks.refuse_workers()
        if self._distributed and (now := _loader_checks.rank_and_size(None, None)) not in (
            (0, 1),
            (self.rank, self.world_size),
        ):
            raise RuntimeError(
                f"torch.distributed was initialised after this Loader was made for rank {self.rank} of "
                f"{self.world_size}, and says rank {now[0]} of {now[1]}: make the Loader afterwards (in "
                "Lightning, in train_dataloader), or give rank and world_size"
            )
