"""The operator with types, for editors and type checkers: they do not see DALI's plugins.

Made from the operator's schema by docs/generate.py: change the text in cpp_shim/schema.cc.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from zarr_dali import _operator_arguments

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def zarr(
    *,
    path: Paths,
    join: Literal["concat", "separate"] = "concat",
    per_store: str | Sequence[Mapping[str, Any] | None] = "",
    arrays: str | Sequence[str] | None = None,
    stack: bool = False,
    stack_channels: bool = False,
    missing_chunks: Literal["fill", "fill-403", "skip", "error"] = "fill",
    follow_links: bool = True,
    storage_options: str | Mapping[str, Any] = "",
    window: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    dilation: int | Sequence[int] | None = None,
    offsets: int | Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    dimension_offsets: str | Mapping[str, Any] = "",
    roi_start: int | Sequence[int] | None = None,
    roi_end: int | Sequence[int] | None = None,
    select: str | Mapping[str, Any] = "",
    exclude: int | Sequence[int] | None = None,
    breaks: int | Sequence[int] | None = None,
    samples: str = "",
    weights: str = "",
    samples_per_epoch: int = 0,
    mask: str = "",
    min_foreground: float = 0.0,
    mask_cache: str = "",
    return_index: bool = False,
    mask_and_scale: bool = False,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    normalize: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any] = "",
    dtype: Any = None,
    random_shuffle: bool = False,
    initial_fill: int = 1024,
    seed: int = -1,
    position: str | Mapping[str, Any] = "",
    shard_id: int = 0,
    num_shards: int = 1,
    stick_to_shard: bool = False,
    pad_last_batch: bool = False,
    decode: Literal["auto", "gpu", "cpu"] = "auto",
    gpu_zstd: Literal["builtin", "nvcomp"] = "builtin",
    io: Literal["auto", "posix", "gds"] = "auto",
    num_io_threads: int = 0,
    num_decode_threads: int = 0,
    cache_bytes: int = 0,
    cache_dir: str = "",
    cache_dir_bytes: int = 0,
    device_memory_budget: int = 0,
    host_memory_budget: int = 0,
    prefetch_queue_depth: int = 1,
    lazy_init: bool = False,
    device: Literal["cpu", "gpu"] | None = None,
    name: str | None = None,
    preserve: bool = False,
    bytes_per_sample_hint: int | Sequence[int] = 0,
) -> DataNode | list[DataNode]:
    """Reads samples from the arrays of a Zarr store.

    A sample is a window over the leading dimensions of an array, or, without `window`, one step `array[i]` of
    its first dimension. Along each of these dimensions there are `(extent - span) // stride + 1` windows of
    `span = (window - 1) * dilation + 1` indices; samples are numbered row by row, the last of these
    dimensions fastest.

    All samples of an output have the same shape. The element type is the array's: bool, signed or unsigned
    integers of 8 to 64 bits, or floating-point numbers of 16, 32 or 64 bits. Narrower types are widened:
    integers of 2 and 4 bits to 8 bits, bfloat16 to float32, floating-point numbers of 4 to 8 bits to float16,
    or to float32 where that cannot hold them. Complex numbers have a further, last dimension of 2: the real
    and the imaginary part. datetime64 and timedelta64 are int64, the number of their units, and "not a time"
    is the least int64. Strings, structures and raw bytes are refused. Values arrive in the byte order of the
    machine.

    An output's layout is made from the array's dimension names (see `arrays`) if each of them is a single
    letter or a known name and no letter comes twice; else it is empty. Known are `time` (T); `level`, `z` and
    `depth` (D); `latitude`, `lat` and `y` (H); `longitude`, `lon` and `x` (W); `channel`, `c` and `variable`
    (C). The `source_info` of a sample says where it came from: `path/array[a:b, c:d, ...]`, a range of
    indices for each dimension of the array. Of joined stores the first and the last are named,
    `first..last/array[...]`, with indices in the joined array; of stores that are read separately (`join`)
    the sample's own, with indices in it; of stacked arrays all of them, `path/[a,b][...]`.

    Zarr v2 and v3 are read, with or without consolidated metadata, sharded or not. With the GPU backend,
    chunks are decoded on the GPU if they are uncompressed or compressed with zstd, blosc, gzip, zlib, lz4 or
    snappy, also behind shuffle, delta and checksums; other codecs are decoded on the CPU and the chunks
    copied. With the CPU backend everything is decoded on the CPU.

    Every batch has `max_batch_size` samples. Epochs, reader shards and padding are those of DALI's own
    readers, and the state of the reader is part of a pipeline's checkpoint.

    Arguments and datasets that do not fit raise `ValueError` when the pipeline is built, or at the first use
    with `lazy_init`. What is found while reading, such as a damaged chunk, raises `RuntimeError`; the reader
    then stays in that error.

    What the operator takes as JSON may be a dictionary or a list here: `select`, `normalize` (also the name
    of a file of JSON), `storage_options`, `per_store`, `dimension_offsets` and `position`. `offsets` may be a
    dictionary of steps by dimension, and `dtype` a type of NumPy or PyTorch or the name of one.

    Args:
        path: Folder or URL of a Zarr group or array, or a list of them.
            A folder is on a local or mounted file system. URLs are those of S3 (`s3://`), Google Cloud
            Storage (`gs://`), Azure (`az://`, `abfs://`) and web servers (`https://`); `storage_options` has
            their credentials. A zip file with a store is read, too: a local one, a URL that ends with `.zip`,
            and `PATH.zip|zip:FOLDER` for a folder in it. So is a snapshot of an Icechunk repository:
            `PATH|icechunk:FOLDER` for the last one of branch `main`, `PATH|icechunk:@branch.NAME/FOLDER`,
            `PATH|icechunk:@tag.NAME/FOLDER` or `PATH|icechunk:@SNAPSHOT/FOLDER`. And so are references of
            kerchunk and VirtualiZarr: a path that ends with `.json`, `.parq` or `.parquet`, or begins with
            `reference::`.
            A group if `arrays` is given, else an array. A list is read as one dataset, by default joined in
            its order along the first dimension; see `join`. A path with `*`, `?` or `[...]` that does not
            exist as it stands is a pattern for all the folders that it matches, in the order of their names
            with numbers by value: `era5/20??.zarr`. In a URL only `*` and `[...]` make a pattern, and the
            store has to permit listing. The stores may differ in format, chunks, codecs and fill values, but
            not in data types, and the attributes `scale_factor`, `add_offset`, `_FillValue`, `missing_value`,
            `units` and `_Unsigned`.
        join: How several stores are read: `"concat"` or `"separate"`.
            `"concat"` joins them along the first dimension to one array, and windows cross from one store to
            the next; further dimensions need the same extents. `"separate"` is for stores that are no
            continuation of each other, such as runs, positions or years with gaps: every sample lies in one
            store, and samples are numbered store by store in the order of `path`. The stores need the same
            dimensions in the same order; extents may differ along the dimensions that `window` covers
            (without `window`: the first). `roi_start`, `roi_end`, `exclude` and `breaks` count in each store,
            as far as it reaches, or see `per_store`. A store without room for a window has no samples, which
            is said once. Arrays without the first dimension, such as static fields, are those of the sample's
            own store. `return_index` gives the store's number, too.
        per_store: What differs from store to store, with `join="separate"`: a JSON list.
            It has an entry for each store in the order of `path`: an object that may have `roi_start`,
            `roi_end`, `exclude` and `breaks`, each a list as the argument of that name, which is then not
            given for all stores, or `null`, which leaves the store out. `zarr_dali.select` makes it from
            labels.
        arrays: Paths of arrays below `path`, one output each, in this order.
            Windows are laid over the array with the most dimensions. Of the others a sample has the same part
            of each dimension that they share with it, by name or, without names, by place. Along the
            dimensions that `window` covers (without `window`: the first) such a dimension must have the same
            extent in all of them, or, by name, the extent 1, which belongs to every sample: labels with one
            channel lie beside all channels of an image. Further dimensions and element types may differ.
            Names are `dimension_names` in Zarr v3, `_ARRAY_DIMENSIONS` in v2, else the axes of the OME-Zarr
            image (0.4 or 0.5) that the array belongs to. If not given or empty, `path` itself is an array and
            the operator has one output.
        stack: Determines whether the arrays are stacked into one output.
            They are stacked in the order of `arrays` on a new axis behind the first dimension of the window:
            a sample of C arrays has the shape `(window[0], C, ...)`, or `(C, ...)` if `window` is not given.
            All arrays need the same shape and element type. The layout gets a `C` there, or is empty if the
            arrays have one already.
        stack_channels: Determines whether levels and arrays become the channels of one output.
            A sample has the shape `(window[0], C, ...)`, or `(C, ...)` if `window` is not given. The last two
            dimensions of the arrays are the grid (the last one if an array has no more), of the same extents
            in all of them. What an array has in between, such as levels, are its channels, and the arrays
            follow one another in the order of `arrays`. Arrays without the first dimension, such as a land
            mask, are repeated for each step of the window. All arrays need the same element type: see
            `dtype`. The layout gets a `C` there. `zarr_dali.stats` tells what each channel is.
        missing_chunks: What a chunk without data in the store means: `"fill"`, `"fill-403"`, `"skip"` or
            `"error"`.
            `"fill"` reads it as the array's fill value, as the Zarr specification says. `"error"` stops with
            an error that names the chunk, for stores in which every chunk should be there. `"fill-403"` is as
            `"fill"` for object stores that answer 403 (forbidden) for what is absent, because the credentials
            lack the permission to list them; before such a batch is handed over, the array's metadata are
            read again with the same credentials.
            `"skip"` leaves out the samples that touch a missing chunk: an epoch has the others, in the same
            order, reader shards and states. Which chunks are missing is found out when the reader is built,
            for folders, zip files, Icechunk repositories and references, and at most 4,194,304 chunks; of
            sharded arrays, whose indexes are read, in folders only. Other stores would need a request for
            each chunk and are refused. A chunk that goes missing later is an error.
        follow_links: Determines whether symbolic links may lead out of a store's folder.
            By default they are followed wherever they lead, as zarr-python does. Give False for stores from
            strangers: a link that leads out of the folder `path` is an error then, which names it; links
            inside the folder are fine, and the folder may be a link itself.
        storage_options: Credentials, endpoints and other options of stores at URLs, as a JSON object.
            The names are obstore's (those of the Rust crate `object_store`) or fsspec's: `{"anon": true}` for
            public data, `{"key": ..., "secret": ..., "endpoint_url": ...}` for S3 and what speaks it, and so
            on; the page "Remote stores" lists them. What is not given comes from the environment that the
            cloud's own tools use. Options for one bucket or host only are an object under its URL, such as
            `{"s3://bucket": {"anon": true}}`.
        window: Extents of a sample along the leading dimensions of the array, in elements.
            Each is at least 1 and at most the array's extent. Dimensions beyond the list are taken whole, so
            that a sample has the shape `window + array.shape[len(window):]`. If not given, a sample is
            `array[i]`, whose shape lacks the first dimension.
        stride: Steps between the starts of neighbouring samples, in elements.
            One value, at least 1, for each extent of `window`; one value if `window` is not given. By default
            1 in the first dimension and in those with offsets, and as many as the window spans, so that
            samples do not overlap, in the others; with `samples` 1 in all.
        dilation: Steps between neighbouring elements of a window, in elements.
            One value, at least 1, for each extent of `window`, by default 1. A window of extent `w` and
            dilation `d` spans `(w - 1) * d + 1` indices.
        offsets: Steps of a sample in the first dimension, relative to the step it is named by.
            Sample `t` holds the steps `t + o` for each `o`, in this order: `[-6, 0, 6, 12]` is history and
            lead times. Instead of `window` and `dilation` in the first dimension; `window` may be given for
            the later ones, its first extent then is the number of offsets. `t` starts where all steps lie in
            the array and in `roi_start`, `roi_end`.
        dimension_offsets: Steps of a sample in dimensions by name, relative to the index it is named by
            there, as JSON.
            An object with a list for each dimension: `{"lead_time": [0, 1, 4, 12]}` takes of forecast runs
            over `(init_time, lead_time, lat, lon)` four lead times that are unevenly apart. A dimension
            without a name is given by its number, from `"0"` on; the first one is that of `offsets`. Samples
            cover all dimensions up to the last that is named: those without offsets have the extents of
            `window`, or 1 without it, and none is left out of the shape. Where `stride` is not given, it is 1
            in dimensions with offsets. In place of a list may be an object,
            `{"offsets": [0, 1, 4, 12], "breaks": [61]}`, with `breaks` of that dimension. `zarr_dali.select`
            and `zarr_dali.Loader` take a dictionary as `offsets`, also with time spans, and make this;
            `zarr_dali.readers.zarr` takes one with steps.
        roi_start: Start of the region that samples are taken from, an index for each leading dimension.
            Every element of a sample lies in the region. The list may be longer than `window`: dimensions
            behind those of the window are then cut to the region. By default 0.
        roi_end: End of that region, the first index behind it, for each leading dimension.
            By default the extent of the array.
        select: Indices of dimensions by name, which are laid one behind another in their order, as JSON.
            An object with a list for each dimension, of indices and of ranges `[start, end]` or
            `[start, end, step]`: `{"level": [7, 3], "longitude": [[350, 360], [0, 11]]}` takes two levels in
            that order, and longitudes across the end as two pieces. It applies to each array with a dimension
            of that name, wherever it stands in it; chunks without any of the indices are not read. `window`,
            `roi_start` and `roi_end` count in what is selected. A sample has all of it: no windows lie along
            such a dimension, and the one that samples are taken along is none. `zarr_dali.select` makes it
            from labels.
        exclude: Indices of the first dimension that no sample may touch, such as missing or bad days.
            Samples that would are left out before samples are counted and shared out to reader shards.
        breaks: Indices of the first dimension that no sample may reach over, such as the first steps behind
            gaps.
            A sample with steps before one of them has none at or behind it; others are left out as those of
            `exclude` are. The reader looks at no coordinate: `zarr_dali.select(..., gaps="skip")` and
            `Loader(gaps="skip")` find the indices.
        samples: The samples to read, in place of all: indices as a list in JSON, or the name of a `.npy` file
            with them.
            A sample is named by what `return_index` gives: an index for each dimension of `window`, behind
            the number of the store with `join="separate"`. `[[0, 40], [3, 7]]` are two samples, and a file
            holds an array of integers with a row for each. Where one index names a sample, a plain list will
            do: `[5, 9, 9]`. Samples may come several times, and lie wherever the window fits: unless `stride`
            is given, it is 1 in all dimensions. Without `random_shuffle` they come in this order. Long lists
            are better read from a file. A list takes 16 bytes for each sample, 24 if it is shuffled.
        weights: How likely each sample is drawn: a list of numbers in JSON, or the name of a `.npy` file with
            them.
            One for each sample in their order, from 0 on: of `samples` if that is given, else of all, those
            that `mask` leaves out included. Each epoch then has samples that are drawn with replacement, as
            many as there are or `samples_per_epoch`. All reader shards have parts of one draw, which depends
            on `seed` and the epoch; it needs `random_shuffle`. It takes 8 bytes for each sample and 24 for
            each draw of an epoch.
        samples_per_epoch: Number of samples of an epoch, all reader shards together; 0: as many as there are.
            Without `weights` an epoch is the next part of a pass over all samples: each comes once before one
            comes again, in as many epochs as that takes. Epochs count as if all before had as many.
        mask: Path of an array below `path` that tells which samples have foreground.
            For example `"labels/0"`. Samples with less than `min_foreground` of it are left out. Its
            dimensions are those of the arrays, or some of them, by their names or, without names, the first
            or the last ones; where it has the extent 1, it counts for all indices. Foreground is what is not
            0. It is read once, when the pipeline is built, in blocks of bounded memory; `mask_cache` keeps
            what came of it.
        min_foreground: The least part of a sample that `mask` has to call foreground, 0 to 1.
            0.05 keeps samples with 5 % or more; 0 those with any foreground at all.
        mask_cache: File that keeps which samples `mask` leaves, so that the mask is not read again.
            It is made if it is not there, and made anew for other windows, another `min_foreground` or a mask
            whose metadata have changed. A mask that was written to under unchanged metadata is not noticed:
            remove the file then, and start a new process, which also keeps the result. The file lies outside
            of the stores.
        return_index: Determines whether the indices of each sample are a further, last output.
            It is int64 with one value for each dimension of `window`: the index at which the sample starts,
            or, with `offsets`, the one it is named by. With `join="separate"` the number of the sample's
            store, its place in the list of stores, comes before these.
        mask_and_scale: Determines whether values are decoded by the CF attributes of their array.
            The attributes `_FillValue` and `missing_value` (NaN where a value equals one of them),
            `scale_factor`, `add_offset` and `_Unsigned` are applied as `xarray.open_zarr` applies them, types
            and rounding included: of Zarr v2 arrays the fill value counts as `_FillValue`, of v3 arrays only
            the attribute; masked integers of 8 and 16 bits become float32, others float64; scaled values are
            float64. Integers that stand for bool (attribute `dtype`) become bool. Points in time and time
            spans are left alone. Arrays without these attributes stay as they are. Attributes that cannot be
            applied are refused.
        mean: Subtracted from the values: one number for all arrays, or one for each of `arrays`.
            `(x - mean) / std` is computed behind `mask_and_scale`, in float32 if the values are bool,
            integers of at most 16 bits or floating-point numbers of at most 32 bits, else in float64, which
            also is the type of the output unless `dtype` is given.
        std: The values are divided by it: one number for all arrays, or one for each of `arrays`.
            Not 0. See `mean`; either can be given alone.
        normalize: What each array, or each channel of it, is normalized by, as JSON: in place of `mean` and
            `std`.
            An object with the mean and the standard deviation of arrays by their names, such as
            `{"t2m": {"mean": 280, "std": 21}, "t": {"dim": "level", "mean": [220, 250], "std": [9, 12]}}`.
            Lists have one number for each index that the store has along the dimension `dim`; without `dim`
            that is the first dimension behind those of `window`. Arrays that the object does not name, or
            names with `null`, are not normalized. It may name arrays that are not read as long as it names
            all that are. In place of the object a list may stand with one entry for each of `arrays`.
            A sample has the whole of `dim`, or a region of it: no windows lie along it. The computation is
            that of `mean` and `std`.
        dtype: Element type of the outputs: bool, an integer or a floating-point type.
            If not given, it is the type of the array, or what `mask_and_scale` or `mean` and `std` make of
            it. Floating-point numbers are rounded to the nearest, ties to even, and become infinite beyond
            the largest. Integers are rounded to, ties to even, and saturate; NaN becomes 0. As bool,
            everything but 0 is true.
        random_shuffle: Determines whether the samples of a reader shard come in random order.
            In each pass over a shard every sample comes once, in an order that depends on nothing but `seed`,
            the epoch, the shard and the arguments. Where several samples share a chunk, they come near each
            other: samples are drawn at random from the chunks of a buffer, whose chunks are replaced at
            random by others, so that each is decoded once in an epoch. See `initial_fill`. If no chunk
            belongs to several samples, the shard is shuffled as a whole. Which samples belong to a shard does
            not depend on `seed`; with windows over several dimensions shards are cut from the list of samples
            sorted by chunk.
        initial_fill: Size of the shuffle's buffer: samples of the chunks that it draws from.
            At least 1. It is made smaller where the decoded chunks would need more than half of the memory
            budget that is given, or more than 2 GiB if none is.
            Where one chunk, or one row of chunks, alone has more samples than that, as dense patches of a
            volume have, the buffer has up to 16 of these, and the shard is gone through several times, each
            time for other samples of each.
        seed: Random seed; if not set, one will be assigned automatically.
        position: Where to start: a position as `zarr_dali.stats` tells it, as JSON.
            For programs that stop and go on, such as `zarr_dali.Loader`; a checkpoint of the pipeline does
            the same. With `pad_last_batch` a position of readers with another number of reader shards, or
            another batch size, will do: what they left of the epoch is cut anew. All shards need the same
            `seed` for that.
        shard_id: Index of the reader shard to start with, 0 to `num_shards - 1`.
        num_shards: Number of reader shards: contiguous parts of the samples, for several GPUs or nodes.
            At least 1 and at most the number of samples. Shard `i` of `n` starts at sample `size * i // n`.
            This has nothing to do with the sharded chunks of Zarr v3.
        stick_to_shard: Determines whether the reader reads the same reader shard in every epoch.
            Otherwise it moves on to the next shard after each epoch and so sees the whole dataset.
        pad_last_batch: Determines whether the last sample is repeated until an epoch's last batch is full.
            Every shard then has the same number of batches in every epoch: as many as the largest shard
            needs. Otherwise batches run on across the end of an epoch. Recommended with the policies
            `PARTIAL` and `DROP` of the framework iterators, which are exact in every epoch only with padding.
        decode: Where chunks are decoded: `"auto"`, `"gpu"` or `"cpu"`.
            `"auto"` decodes on the CPU what idle cores finish in time, because what the GPU decodes is taken
            from a model that trains on it, and on the GPU what it can of the rest (GPU backend only). Cores
            that could decode less than a fifth of what is taken are left to the training. `"gpu"` refuses an
            array whose codecs the GPU cannot decode, and the CPU backend as a whole. `"cpu"` decodes
            everything on the CPU; the GPU backend then copies the decoded chunks.
        gpu_zstd: What decodes zstd on the GPU: `"builtin"` or `"nvcomp"`.
            `"builtin"` is a decoder of this package: a chunk takes milliseconds and little memory. `"nvcomp"`
            is NVIDIA's library, for comparison. Beside trainings on an H200, models kept 1 to 10 percentage
            points more of their speed with `"builtin"` (one round). Where a chunk has 512 MB or more, nvCOMP
            decodes all.
        io: How chunks are read: `"auto"`, `"posix"` or `"gds"`.
            `"auto"` uses cuFile for uncompressed chunks where it can read from the disk to the GPU without a
            detour through the host (GPUDirect Storage), and reads through the page cache elsewhere. `"gds"`
            uses cuFile in any case, in its compatibility mode if it has to, and is an error where cuFile
            cannot be used. Of a compressed chunk the headers alone come back to the host, except with gzip or
            an outer checksum.
        num_io_threads: Number of threads that read chunks, in the CPU backend also decode them, at least 1.
            0 chooses from the cores that the process may use.
        num_decode_threads: Number of threads that decode on the CPU, at least 1.
            0 chooses from the cores that the process may use; in the CPU backend as many as `num_io_threads`.
            In the GPU backend they run at a lower priority than the training's own threads: where the GPU
            could decode all chunks, only on cores that nobody else wants (SCHED_IDLE).
        cache_bytes: Memory in bytes for decoded chunks that are kept from one epoch to the next.
            It is part of `device_memory_budget`, in the CPU backend of `host_memory_budget`, and raises
            neither. Chunks that are found there are neither read nor decoded.
        cache_dir: Folder on a local disk in which chunks of stores at URLs are kept as they come, encoded.
            Later epochs, later runs and other processes of this machine that give the same folder read them
            there in place of requesting them. It is made if it is not there. What is kept is used as long as
            the metadata of its array have the same version: chunks that were overwritten since under
            unchanged metadata are not noticed; remove the folder then. The page "Remote stores" says more.
            Local stores are not kept.
        cache_dir_bytes: The most bytes of chunks in `cache_dir`, of all processes together; needed with it.
            Each chunk counts with 1 KiB more and in whole blocks of 4 KiB. A twentieth of the file system is
            left free in any case, at most 10 GiB. Chunks that have no room are requested in each epoch; for
            them those are removed that no running reader needs, of arrays that were read least recently
            first.
        device_memory_budget: GPU memory in bytes for batches in flight, encoded and decoded chunks and
            decoding.
            Three batches that DALI holds after that, as it does with its usual queue of two, are part of it.
            0 takes an eighth of the memory that is free when the reader starts, and where that cannot hold a
            batch as much as it needs, up to half. Without effect in the CPU backend.
        host_memory_budget: Host memory in bytes: for encoded chunks in pinned memory in the GPU backend, for
            batches in flight in the CPU backend.
            Scratch memory of the threads that decode, plans of batches, the order of a shuffle and shard
            indexes are part of it as far as they take more than 64 MiB together. Fewer threads decode where
            it has no room for all. A chunk that it cannot hold while it is decoded is refused, and so is a
            batch of more chunks than it can plan.
            0 takes an eighth of the machine's memory, or of what its container or job is limited to, at most
            4 GiB, and where that cannot hold what is needed as much as that, up to half. Each process takes
            that: give a number where many of them share a limit.
        prefetch_queue_depth: Least number of batches that are kept in flight, at least 1.
            The reader runs further ahead on its own as its memory budgets allow. More than the budgets can
            hold is refused.
        lazy_init: Determines whether the dataset is opened at its first use and not in `build`.
            The first use is the first batch, the first request for the reader's metadata, or a checkpoint. A
            wrong `path` is then reported only there.
        device: The backend: where chunks are decoded as a rule, and where the outputs are. Without it the
            CPU.
        name: Name of the operator, for `reader_meta` and the iterators.
        preserve: Prevents the operator from being removed from the graph even if its outputs are not used.
        bytes_per_sample_hint: Output size hint, in bytes per sample.
            If specified, the operator's outputs residing in GPU or page-locked host memory will be
            preallocated to accommodate a batch of samples of this size.

    Returns:
        One output, or a list of them: one for each of `arrays`, or one for all with `stack`; then the
        indices with `return_index`.
    """
    given = locals()
    from nvidia.dali import fn  # here, because the package says first which release of DALI it needs

    return fn.readers.zarr(**_operator_arguments.of_wrapper(_other_than_defaults(given)))


def _other_than_defaults(given: dict[str, Any]) -> dict[str, Any]:
    # To DALI an argument with its default is not the same as none: a seed of -1 hides the pipeline's. And in
    # DALI's conditional mode `zarr` is rewritten and has further local variables.
    parameters = inspect.signature(zarr).parameters.values()
    return {each.name: given[each.name] for each in parameters if not _same(given[each.name], each.default)}


def _same(value: Any, default: Any) -> bool:
    return value is default or (isinstance(default, (bool, int, str)) and value == default)
