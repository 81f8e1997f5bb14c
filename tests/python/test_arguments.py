"""Arguments and stores that cannot be used: a ValueError when the pipeline is built that names what, where
and what would do, and a process that lives on.
"""

import json
import re
import warnings

import numpy as np
import pytest
import zarr

from reading import CPU, DALI_2_0, GPU, assert_samples, build, gpu_problem, read_all, run_python
from stores import FORMATS, edit_metadata, write_array, write_group

# Almost all is found before a backend is asked.
pytestmark = pytest.mark.gpu_where(False)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A group: t2m (6, 4, 3), mask (6, 4), hour (6,), short (5, 4), wide (6, 9), deep/x (6, 2)."""
    path = tmp_path_factory.mktemp("arguments") / "weather.zarr"
    write_group(path)
    shapes = {
        "t2m": (6, 4, 3),
        "mask": (6, 4),
        "hour": (6,),
        "short": (5, 4),
        "wide": (6, 9),
        "deep/x": (6, 2),
    }
    for name, shape in shapes.items():
        values = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        write_array(path, name, values, chunks=(2,) * len(shape))
    return path


def assert_refused(backend, healthy, path, *parts, exception=ValueError, **arguments):
    """Building fails with all of `parts` (regular expressions) in the text; another pipeline still works."""
    with pytest.raises(exception) as caught:
        build(backend, path, **arguments)
    text = str(caught.value)
    for part in parts:
        assert re.search(part, text), f"{part!r} is not in: {text}"
    whole = np.arange(24, dtype="float32").reshape(6, 4)
    assert_samples(read_all(backend, healthy, arrays=["mask"])[0], whole)
    return text


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.gpu_where(True)
def test_path_that_does_not_exist(backend, store):
    path = store.parent / "nowhere.zarr"
    assert_refused(backend, store, path, re.escape(str(path)), "does not exist|not found|no such")
    assert not path.exists()


def test_path_that_is_a_file(backend, store, tmp_path):
    path = tmp_path / "era5.nc"
    path.write_bytes(b"CDF")
    assert_refused(backend, store, path, re.escape(str(path)), "is a file", arrays=["t2m"])
    assert_refused(backend, store, path, re.escape(str(path)), "is a file")


def test_path_that_is_an_empty_folder(backend, store, tmp_path):
    for arguments in ({}, {"arrays": ["t2m"]}):
        assert_refused(backend, store, tmp_path, re.escape(str(tmp_path)), **arguments)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_no_store_but_holds_one(backend, store):
    assert_refused(backend, store, store.parent, re.escape(str(store.parent)), arrays=["weather.zarr/t2m"])


def test_empty_path(backend, store):
    assert_refused(backend, store, "", "path")


def test_dangling_link(backend, store, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert_refused(backend, store, tmp_path / "link", re.escape(str(tmp_path / "link")))


@pytest.mark.gpu_where(True)
def test_group_where_an_array_is_meant(backend, store):
    """The text says that it is a group and lists its arrays."""
    assert_refused(backend, store, store, re.escape(str(store)), "group", "t2m", "mask", "hour", "arrays")


def test_array_where_a_group_is_meant(backend, store):
    path = store / "t2m"
    assert_refused(backend, store, path, re.escape(str(path)), "array", "mask", arrays=["mask"])


@pytest.mark.parametrize("name", ["t2n", "deep", "deep/y", "T2M", ""])
def test_array_that_is_not_there(backend, store, name):
    """The text lists the arrays that are."""
    text = assert_refused(backend, store, store, re.escape(str(store)), "t2m", arrays=["mask", name])
    assert name in text


@pytest.mark.parametrize("name", ["./t2m", "deep/../t2m", "deep//x"])
def test_name_that_is_no_path_from_the_group(backend, store, name):
    text = assert_refused(backend, store, store, "arrays", "paths from the group", arrays=[name])
    assert name in text


def test_v2_group_lists_its_arrays(backend, store, tmp_path):
    write_group(tmp_path, zarr_format=2)
    write_array(tmp_path, "t2m", np.zeros((3, 2), "float32"), chunks=(1, 2), zarr_format=2)
    assert_refused(backend, store, tmp_path, "group", "t2m")
    assert_refused(backend, store, tmp_path, "t2n", "t2m", arrays=["t2n"])


# --- data types -----------------------------------------------------------------------------------


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "dtype, name",
    [
        ("U5", "utf32|U5"),
        ("S5", "bytes|S5"),
        (str, "string|utf8|object"),
        ([("a", "f4"), ("b", "i2")], "struct|a.*b"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else getattr(value, "__name__", "structured"),
)
def test_data_types_dali_does_not_have(backend, store, tmp_path, zarr_format, dtype, name):
    if 3 not in FORMATS:
        pytest.skip("the types are written through zarr-python 3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(
            str(tmp_path), name="odd", shape=(4, 2), chunks=(2, 2), dtype=dtype, zarr_format=zarr_format
        )
    assert_refused(backend, store, tmp_path, re.escape(str(tmp_path)), "odd", name, arrays=["odd"])


# --- arrays that do not go together ---------------------------------------------------------------


@pytest.mark.gpu_where(True)
def test_arrays_of_different_first_dimension(backend, store):
    assert_refused(backend, store, store, "mask", "short", "6", "5", arrays=["mask", "short"])
    assert_refused(backend, store, store, "mask", "short", arrays=["mask", "short"], window=[2])


def test_arrays_that_differ_under_the_window(backend, store):
    """`wide` agrees with `mask` in the first dimension and not in the second."""
    read_all(backend, store, arrays=["mask", "wide"], window=[2])
    assert_refused(backend, store, store, "mask", "wide", arrays=["mask", "wide"], window=[2, 2])


def test_array_with_fewer_dimensions_than_the_window(backend, store):
    assert_refused(backend, store, store, "hour", r"\[6\]", "2", arrays=["mask", "hour"], window=[2, 2])


def test_array_without_dimensions(backend, store, tmp_path):
    write_array(tmp_path, "scalar", np.zeros((), "float32"), chunks=())
    assert_refused(backend, store, tmp_path, "scalar", arrays=["scalar"])


def test_array_without_samples(backend, store, tmp_path):
    write_array(tmp_path, "empty", np.zeros((0, 3), "float32"), chunks=(1, 3), write=False)
    assert_refused(backend, store, tmp_path, "empty|sample", arrays=["empty"])


# --- argument values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument, arguments",
    [
        ("window", {"window": []}),
        ("window", {"window": [0]}),
        ("window", {"window": [-1]}),
        ("window", {"window": [7]}),
        ("window", {"window": [2, 5]}),
        ("window", {"window": [2, 0]}),
        ("window", {"window": [1, 1, 1]}),
        ("window", {"window": [2**62]}),
        ("window", {"window": [-(2**63)]}),
        ("stride", {"window": [2], "stride": [0]}),
        ("stride", {"window": [2], "stride": [-1]}),
        ("stride", {"window": [2], "stride": [1, 1]}),
        ("stride", {"window": [2, 2], "stride": [1, 0]}),
        ("stride", {"window": [2, 2], "stride": [-(2**63), 1]}),
        ("stride", {"stride": [1, 1]}),
        ("stride", {"stride": [0]}),
        ("shard_id", {"shard_id": -1}),
        ("shard_id", {"shard_id": 1}),
        ("shard_id", {"shard_id": 3, "num_shards": 3}),
        ("num_shards", {"num_shards": 0}),
        ("num_shards", {"num_shards": -2}),
        ("num_shards", {"num_shards": 7}),
        ("num_shards", {"num_shards": 6, "window": [2]}),
        ("missing_chunks", {"missing_chunks": "zero"}),
        ("missing_chunks", {"missing_chunks": ""}),
        ("decode", {"decode": "fast"}),
        ("decode", {"decode": ""}),
        ("num_io_threads", {"num_io_threads": -1}),
        ("num_decode_threads", {"num_decode_threads": -1}),
        ("cache_bytes", {"cache_bytes": -1}),
        ("io", {"io": "mmap"}),
        ("host_memory_budget", {"host_memory_budget": -1}),
        ("device_memory_budget", {"device_memory_budget": -1}),
        ("prefetch_queue_depth", {"prefetch_queue_depth": 0}),
        ("prefetch_queue_depth", {"prefetch_queue_depth": -1}),
    ],
    ids=lambda value: json.dumps(value).replace(" ", "") if isinstance(value, dict) else value,
)
def test_values_that_do_not_fit(backend, store, argument, arguments):
    assert_refused(backend, store, store, argument, arrays=["mask"], **arguments)


@pytest.mark.parametrize(
    "argument, value",
    [
        ("window", [2**70]),
        ("offsets", [0, 2**70]),
        ("exclude", [2**63]),
        ("roi_start", [-(2**70)]),
        ("roi_end", [2**64]),
    ],
)
def test_integers_of_more_than_64_bits(backend, store, argument, value):
    words, refused = f"{argument}.*64 bits", ValueError
    if DALI_2_0:
        words, refused = f"Unsupported argument type with name {argument}", RuntimeError
    assert_refused(backend, store, store, words, exception=refused, arrays=["mask"], **{argument: value})


def test_values_at_the_border_fit(backend, store):
    """The neighbours of refused values are accepted."""
    whole = np.arange(24, dtype="float32").reshape(6, 4)
    for window, stride in (([6], None), ([2, 4], None), ([1, 1], [6, 4]), ([1], [2**62])):
        (samples,) = read_all(backend, store, arrays=["mask"], window=window, stride=stride)
        assert_samples(samples, whole, window, stride)
    build(backend, store, arrays=["mask"], num_shards=6, shard_id=5)
    build(backend, store, arrays=["mask"], num_shards=5, window=[2])


def test_window_names_the_extent_that_is_there(backend, store):
    assert_refused(backend, store, store, "window", "7", "6", "mask", arrays=["mask"], window=[7])


def test_num_shards_names_the_number_of_samples(backend, store):
    assert_refused(
        backend, store, store, "num_shards", "9", r"\b5\b", arrays=["mask"], window=[2], num_shards=9
    )


@pytest.mark.gpu_where(True)
def test_budget_too_small_for_one_chunk(backend, store):
    name = f"{'host' if backend.device == 'cpu' else 'device'}_memory_budget"
    text = assert_refused(backend, store, store, name, arrays=["mask"], **{name: 1})
    assert re.search(r"at least \d+", text)


def test_decode_on_the_gpu_with_the_cpu_backend(store):
    assert_refused(CPU, store, store, "decode", 'device="gpu"', arrays=["mask"], decode="gpu")


@pytest.mark.gpu
@pytest.mark.parametrize("codec", ["bz2", "sharded-nested-zstd"])
def test_decode_on_the_gpu_of_a_chain_for_the_cpu(store, tmp_path, codec):
    """A fallback is never silent: `decode="gpu"` refuses what `decode="auto"` decodes on the CPU."""
    values = np.arange(24, dtype="float32").reshape(6, 4)
    write_array(tmp_path, "a", values, chunks=(2, 2), codec=codec)
    assert_refused(
        GPU, store, tmp_path, re.escape(str(tmp_path)), '"a"', "decode", arrays=["a"], decode="gpu"
    )
    assert_samples(read_all(GPU, tmp_path, arrays=["a"])[0], values)


@pytest.mark.gpu_where(True)
def test_errors_of_a_lazy_reader_come_at_the_first_run(backend, store):
    pipe = build(backend, store, arrays=["t2n"], lazy_init=True)
    with pytest.raises(ValueError, match="t2n"):
        pipe.run()
    pipe = build(backend, store, arrays=["t2n"], lazy_init=True)
    with pytest.raises(ValueError, match="t2n"):
        pipe.reader_meta("reader")


# --- metadata -------------------------------------------------------------------------------------


def _codec(metadata):
    metadata["codecs"].append({"name": "nope.squeeze", "configuration": {}})


V3_METADATA = {
    "unknown-codec": (_codec, "nope.squeeze"),
    "unknown-data-type": (lambda m: m.update(data_type="float99"), "float99"),
    "unknown-grid": (
        lambda m: m.update(chunk_grid={"name": "spiral", "configuration": {}}),
        "spiral",
    ),
    "zero-chunk": (
        lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[0, 2]),
        "odd",
    ),
    "chunk-of-other-rank": (
        lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[2]),
        "chunk",
    ),
    "negative-shape": (lambda m: m.update(shape=[-6, 4]), "odd"),
    "text-as-fill-value": (lambda m: m.update(fill_value="much"), "fill|much"),
    "fill-value-out-of-range": (lambda m: m.update(data_type="uint8", fill_value=300), "fill|300"),
    "no-codecs": (lambda m: m.pop("codecs"), "codecs"),
    "format-4": (lambda m: m.update(zarr_format=4), "odd"),
    "must-understand": (lambda m: m.update(extension={"name": "x", "must_understand": True}), "extension"),
    "rectilinear-grid": (
        lambda m: m.update(
            chunk_grid={
                "name": "rectilinear",
                "configuration": {"kind": "inline", "chunk_shapes": [[1, 2, 3], [4]]},
            }
        ),
        "grid",
    ),
}


@pytest.mark.parametrize("case", V3_METADATA)
def test_v3_metadata_that_cannot_be_read(backend, store, tmp_path, case):
    change, part = V3_METADATA[case]
    path = write_array(tmp_path, "odd", np.zeros((6, 4), "float32"), chunks=(2, 2), zarr_format=3)
    edit_metadata(path / "zarr.json", change)
    assert_refused(backend, store, tmp_path, "odd", part, arrays=["odd"])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff", '{"zarr_format": 3}'])
@pytest.mark.parametrize("zarr_format, file", [(2, ".zarray"), (3, "zarr.json")])
def test_metadata_that_is_not_json(backend, store, tmp_path, zarr_format, file, text):
    path = write_array(tmp_path, "odd", np.zeros((6, 4), "float32"), chunks=(2, 2), zarr_format=zarr_format)
    (path / file).write_text(text, encoding="latin-1")
    assert_refused(backend, store, tmp_path, re.escape(str(tmp_path)), "odd", arrays=["odd"])


def test_v2_compressor_that_nobody_knows(backend, store, tmp_path):
    path = write_array(tmp_path, "odd", np.zeros((6, 4), "float32"), chunks=(2, 2), zarr_format=2)
    edit_metadata(path / ".zarray", lambda metadata: metadata.update(compressor={"id": "squeeze"}))
    assert_refused(backend, store, tmp_path, "odd", "squeeze", arrays=["odd"])


def test_inner_chunks_that_do_not_divide_the_sharded_chunk(backend, store, tmp_path):
    path = write_array(
        tmp_path, "odd", np.zeros((8, 8), "float32"), chunks=(2, 2), shards=(4, 4), codec="sharded-end-zstd"
    )
    edit_metadata(path / "zarr.json", lambda m: m["codecs"][0]["configuration"].update(chunk_shape=[3, 2]))
    assert_refused(backend, store, tmp_path, "odd", arrays=["odd"])


@pytest.mark.gpu_where(True)
@pytest.mark.parametrize("shape", [[2**62, 2**62], [2**40, 2**50], [3, 2**61]])
def test_extents_beyond_all_memory(backend, store, tmp_path, shape):
    """A sample that no machine can hold is refused, whenever that is noticed."""
    path = write_array(tmp_path, "odd", np.zeros((6, 4), "float32"), chunks=(2, 2), zarr_format=3)
    edit_metadata(path / "zarr.json", lambda metadata: metadata.update(shape=shape))
    with pytest.raises((ValueError, RuntimeError)):
        build(backend, tmp_path, arrays=["odd"], batch_size=2).run()
    read_all(backend, store, arrays=["mask"])


def test_more_samples_than_numbers(backend, store, tmp_path):
    """2**80 windows are refused, and not for there being none."""
    path = write_array(tmp_path, "odd", np.zeros((6, 4), "float32"), chunks=(2, 2), zarr_format=3)
    edit_metadata(path / "zarr.json", lambda metadata: metadata.update(shape=[2**40, 2**40]))
    text = assert_refused(backend, store, tmp_path, arrays=["odd"], window=[1, 1])
    assert "num_shards" not in text


# --- machines -------------------------------------------------------------------------------------


def test_gpu_operator_without_a_gpu(store):
    """DALI itself refuses such a pipeline, before it asks the operator."""
    code = """
        import sys
        from reading import CPU, GPU, Backend, build, read_all
        for backend in (GPU, Backend("gpu", None)):
            try:
                build(backend, sys.argv[1], arrays=["mask"]).run()
            except RuntimeError as error:
                print("refused:", str(error).replace("\\n", " "))
        print(len(read_all(CPU, sys.argv[1], arrays=["mask"])[0]), "samples on the CPU")
    """
    done = run_python(code, store, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    refused = [line for line in done.stdout.splitlines() if line.startswith("refused:")]
    assert len(refused) == 2, done.stdout
    assert all(re.search("CUDA|GPU", line) for line in refused)
    assert "6 samples on the CPU" in done.stdout


@pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")
def test_gpu_operator_without_a_driver(store):
    with pytest.raises(RuntimeError, match=r"CUDA|GPU"):
        build(GPU, store, arrays=["mask"]).run()
    assert len(read_all(CPU, store, arrays=["mask"])[0]) == 6


@pytest.mark.gpu
def test_gpu_chain_without_nvcomp(store, tmp_path):
    """Only `gpu_zstd="nvcomp"` fails, saying what to install."""
    values = np.arange(24, dtype="float32").reshape(6, 4)
    write_array(tmp_path, "zstd", values, chunks=(2, 2), codec="zstd")
    write_array(tmp_path, "raw", values, chunks=(2, 2), codec="raw")
    write_array(tmp_path, "gzip", values, chunks=(2, 2), codec="gzip")
    code = """
        import sys
        from reading import CPU, GPU, build, read_all
        try:
            build(GPU, sys.argv[1], arrays=["zstd"], gpu_zstd="nvcomp").run()
        except RuntimeError as error:
            print("refused:", str(error).replace("\\n", " "))
        for backend, array, decode in (
            (GPU, "raw", "auto"), (GPU, "gzip", "auto"), (GPU, "zstd", "gpu"), (CPU, "zstd", "auto")
        ):
            (samples,) = read_all(backend, sys.argv[1], arrays=[array], decode=decode)
            print("read", [sample.tolist() for sample in samples])
    """
    done = run_python(code, tmp_path, env={"ZARR_DALI_NVCOMP_LIBRARY": "/nonexistent/libnvcomp.so"})
    assert done.returncode == 0, done.stderr
    (refused,) = [line for line in done.stdout.splitlines() if line.startswith("refused:")]
    for part in (re.escape(str(tmp_path)), "zstd", "nvCOMP", "/nonexistent/libnvcomp.so", 'decode="cpu"'):
        assert re.search(part, refused), f"{part} is not in {refused}"
    assert done.stdout.count(f"read {values.tolist()}") == 4
