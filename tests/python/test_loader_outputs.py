"""What `zarr_dali.Loader` does with the reader's outputs (types, layouts, operators, a function of a batch),
and what it says to those who ask for what it is not.
"""

import json

import ml_dtypes
import numpy as np
import pytest
import torch
import zarr
from nvidia.dali import fn
from nvidia.dali.data_node import DataNode
from nvidia.dali.types import DALIDataType
from torch.utils.data import DataLoader

import zarr_dali
from reading import CPU, gpu_problem, read_all
from stores import FORMATS, write_array, write_group
from test_loader import device_of
from zarr_dali._outputs import NOT_OF_TORCH, dali_type

STEPS = 12
SOURCES = {
    "bool": "?", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "int64": "i8", "uint64": "u8", "float16": "f2", "float32": "f4", "float64": "f8",
}  # fmt: skip
TARGETS = [name for name in SOURCES if name not in NOT_OF_TORCH]
EDGES = (0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388607.5, 300.0, -3.0, 1e30, -1e30, np.nan, np.inf, -np.inf)


def values_of(kind):
    """Twelve steps of 4 x 5 values that are hard to cast: ties, ends of ranges, NaN and infinities."""
    rng = np.random.default_rng(7)
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        values = (rng.normal(0, 200, (STEPS, 4, 5)) * 2).round() / 2
        values.flat[: len(EDGES)] = EDGES
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    if dtype.kind == "b":
        return rng.random((STEPS, 4, 5)) < 0.5
    ends = np.iinfo(dtype)
    values = rng.integers(ends.min, ends.max, (STEPS, 4, 5), dtype=dtype, endpoint=True)
    values.flat[:3] = ends.min, ends.max, 1
    return values


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An array of each type by its name, with a coordinate of six hours; `scaled` has CF attributes."""
    path = tmp_path_factory.mktemp("outputs") / "types.zarr"
    write_group(path)
    names = ("time", "lat", "lon")
    for name, kind in SOURCES.items():
        write_array(path, name, values_of(kind), chunks=(3, 4, 5), dimension_names=names)
    values = np.arange(STEPS * 20, dtype="u2").reshape(STEPS, 4, 5)
    scaled = write_array(path, "scaled", values, chunks=(3, 4, 5), dimension_names=names)
    zarr.open_array(scaled).attrs.update({"scale_factor": 0.5, "add_offset": 1.0})
    time = write_array(path, "time", np.arange(STEPS) * 6, chunks=(STEPS,), dimension_names=("time",))
    zarr.open_array(time).attrs.update({"units": "hours since 2010-01-01", "calendar": "standard"})
    return path


def whole(loader):
    """One epoch: all samples of each output."""
    batches = [{name: tensor.cpu() for name, tensor in batch.items()} for batch in loader]
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


# --- element types --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.gpu_where(lambda case: case["source"] in ("float16", "float32", "uint16", "bool"))
def test_types_of_single_outputs_are_those_of_the_reader(backend, store, source):
    """A cast of one output among others gives the very values that the reader's own `dtype` gives."""
    for target in TARGETS:
        beside = "int8" if target != "int8" else "int16"
        loader = zarr_dali.Loader(
            store, [source, "uint8"], 5, device=device_of(backend), names=["x", "y"], dtype=[target, beside]
        )
        found = whole(loader)
        (expected,) = read_all(backend, store, arrays=[source], dtype=dali_type(target))
        assert str(found["x"].dtype) == f"torch.{target}", target
        np.testing.assert_array_equal(found["x"].numpy(), np.stack(expected), err_msg=target)
        assert str(found["y"].dtype) == f"torch.{beside}"


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "dtype",
    [
        ["float32", "int64"],
        (torch.float32, np.int64),
        {"float64": np.dtype("float32"), "int16": "int64"},
        {"float64": "float32", "int16": torch.int64},
    ],
)
def test_types_are_given_in_many_ways(backend, store, dtype):
    found = whole(zarr_dali.Loader(store, ["float64", "int16"], 5, device=device_of(backend), dtype=dtype))
    assert (found["float64"].dtype, found["int16"].dtype) == (torch.float32, torch.int64)
    np.testing.assert_array_equal(found["float64"].numpy(), values_of("f8").astype("f4"))
    np.testing.assert_array_equal(found["int16"].numpy(), values_of("i2"))


def test_none_leaves_a_type_alone(store):
    found = whole(zarr_dali.Loader(store, ["uint16", "int16"], 5, device="cpu", dtype=["int32", None]))
    assert (found["uint16"].dtype, found["int16"].dtype) == (torch.int32, torch.int16)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, np.dtype(ml_dtypes.bfloat16)])
@pytest.mark.gpu_where(lambda case: case["dtype"] == "bfloat16")
def test_bfloat16(backend, store, dtype):
    found = whole(zarr_dali.Loader(store, "float32", 5, device=device_of(backend), dtype=dtype))["float32"]
    assert found.dtype == torch.bfloat16
    expected = values_of("f4").astype(ml_dtypes.bfloat16).astype("f4")
    np.testing.assert_array_equal(found.float().numpy(), expected)
    mixed = zarr_dali.Loader(
        store, ["float64", "uint8"], 5, device=device_of(backend), dtype=[dtype, None], return_index=True
    )
    types = {name: tensor.dtype for name, tensor in next(iter(mixed)).items()}
    assert types == {"float64": torch.bfloat16, "uint8": torch.uint8, "index": torch.int64}


@pytest.mark.parametrize("zarr_format", FORMATS)
@pytest.mark.parametrize("kind", NOT_OF_TORCH)
def test_types_that_torch_lacks_are_refused_at_once(tmp_path, zarr_format, kind):
    """With the remedy, which works; also where two arrays are one output, and of an array by itself."""
    path = tmp_path / "counts.zarr"
    write_group(path, zarr_format=zarr_format)
    values = np.arange(24).reshape(6, 4)
    for name, one in (("n", kind), ("m", kind), ("x", "float32")):
        write_array(path, name, values.astype(one), chunks=(2, 4), zarr_format=zarr_format)
    wider = "int32" if kind == "uint16" else "int64"
    for arguments, words in [
        ({"path": path, "arrays": "n"}, f"n is {kind}.*dtype='{wider}'"),
        ({"path": path / "n"}, f"data is {kind}.*dtype='{wider}'"),
        ({"path": path, "arrays": ["x", "n"]}, rf"n is {kind}.*dtype={{'n': '{wider}'}}"),
        ({"path": path, "arrays": ["x", "n"], "names": ["a", "b"]}, rf"dtype={{'b': '{wider}'}}"),
        ({"path": path, "arrays": ["n", "m"], "stack": True}, f"data is {kind}.*dtype='{wider}'"),
        ({"path": path, "arrays": ["x", "n"], "dtype": {"x": "float64"}}, f"n is {kind}"),
        ({"path": path, "arrays": ["n"], "dtype": kind}, f"{kind}.*{wider}"),
    ]:
        with pytest.raises(ValueError, match=words):
            zarr_dali.Loader(**arguments, device="cpu")
    for remedy in ({"dtype": {"n": wider}}, {"mean": 0.0}):
        found = whole(zarr_dali.Loader(path, ["x", "n"], 4, device="cpu", **remedy))
        np.testing.assert_array_equal(found["n"].numpy(), values)
        assert found["x"].dtype == torch.float32


def test_decoded_by_attributes_they_are_not_refused(store):
    with pytest.raises(ValueError, match=r"scaled is uint16"):
        zarr_dali.Loader(store, "scaled", 4, device="cpu")
    found = whole(zarr_dali.Loader(store, "scaled", 4, device="cpu", mask_and_scale=True))["scaled"]
    np.testing.assert_array_equal(found.numpy(), np.arange(STEPS * 20).reshape(STEPS, 4, 5) * 0.5 + 1)
    with pytest.raises(ValueError, match=r"uint16 is uint16"):
        zarr_dali.Loader(store, ["scaled", "uint16"], 4, device="cpu", mask_and_scale=True)


# --- layouts and operators ------------------------------------------------------------------------


def test_flip_through_a_layout(backend, store):
    """A window of steps on a grid is an image with steps as channels to DALI's operators."""
    loader = zarr_dali.Loader(
        store, ["float32"], 4, window=[3], device=device_of(backend), layout="CHW",
        graph=lambda nodes: {"x": nodes["float32"], "mirrored": fn.flip(nodes["float32"], horizontal=1)},
    )  # fmt: skip
    assert loader.names == ["x", "mirrored"]
    found = whole(loader)
    values = values_of("f4")
    windows = np.stack([values[start : start + 3] for start in range(STEPS - 2)])
    np.testing.assert_array_equal(found["x"].numpy(), windows)
    np.testing.assert_array_equal(found["mirrored"].numpy(), windows[..., ::-1])


OPERATORS = {
    "crop": lambda node: fn.crop(node, crop=(2, 3)),
    "resize": lambda node: fn.resize(node, size=(2, 3)),
    "random_resized_crop": lambda node: fn.random_resized_crop(node, size=(2, 3)),
    "gaussian_blur": lambda node: fn.gaussian_blur(node, sigma=1.0),
    "erase": lambda node: fn.erase(node, anchor=[0.0, 0.0], shape=[1.0, 1.0], axis_names="HW"),
    "brightness": lambda node: fn.brightness(fn.reinterpret(node, layout="HWC"), brightness=1.5),
    "contrast": lambda node: fn.contrast(fn.reinterpret(node, layout="HWC"), contrast=1.5),
    "rotate": lambda node: fn.transpose(
        fn.rotate(fn.transpose(node, perm=[1, 2, 0]), angle=90.0, keep_size=True), perm=[2, 0, 1]
    ),
}
"""What the page about the loader says that works on windows of steps as channels."""


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_that_the_documentation_names(backend, store, name):
    loader = zarr_dali.Loader(
        store, ["float64"], 4, window=[3], device=device_of(backend), dtype="float32", layout="CHW",
        graph=lambda nodes: OPERATORS[name](nodes["float64"]),
    )  # fmt: skip
    shape = next(iter(loader))["float64"].shape
    assert shape[:2] == (4, 3) and shape[2:] in ((2, 3), (4, 5))


def test_operators_on_a_device(backend, store):
    """Crop, brightness and arithmetic, with types and layouts by name, and the last batch cut as ever."""

    def graph(nodes):
        image = fn.crop(nodes["int16"], crop=(2, 3), crop_pos_x=0.0, crop_pos_y=1.0)
        return {"image": fn.brightness(fn.reinterpret(image, layout="HWC"), brightness=2.0), **nodes}

    loader = zarr_dali.Loader(
        store, ["int16", "uint16"], 5, window=[2], device=device_of(backend), graph=graph, return_index=True,
        dtype=["float32", "float32"], layout={"int16": "CHW"},
    )  # fmt: skip
    assert loader.names == ["image", "int16", "uint16", "index"]
    found = whole(loader)
    values = values_of("i2").astype("f4")
    windows = np.stack([values[start : start + 2] for start in range(STEPS - 1)])
    np.testing.assert_array_equal(found["image"].numpy(), windows[:, :, 2:, :3] * 2)
    np.testing.assert_array_equal(found["uint16"].numpy()[:, 0], values_of("u2")[:-1])
    assert found["index"].ravel().tolist() == list(range(STEPS - 1))
    assert {tensor.device for tensor in next(iter(loader)).values()} == {torch.device(device_of(backend))}


@pytest.mark.gpu_where(False)
@pytest.mark.parametrize(
    "graph, names",
    [
        (lambda nodes: nodes["int8"] + 1, ["int8"]),
        (lambda nodes: [nodes["int8"] + 1], ["int8"]),
        (lambda nodes: {"y": nodes["int8"] + 1}, ["y"]),
    ],
)
def test_what_a_graph_may_return(backend, store, graph, names):
    loader = zarr_dali.Loader(store, ["int8"], 4, device=device_of(backend), graph=graph, dtype="int32")
    assert loader.names == names
    np.testing.assert_array_equal(whole(loader)[names[0]].numpy(), values_of("i1").astype("i4") + 1)


@pytest.mark.gpu_where(lambda case: case["dtype"] == "bfloat16")
@pytest.mark.parametrize(
    "dtype, expected",
    [
        ({"y": "float16"}, {"y": "float16", "z": "int16", "int8": "int8"}),
        ({"y": "bfloat16", "int8": "float32"}, {"y": "bfloat16", "z": "int16", "int8": "float32"}),
        ({"y": "int64", "z": torch.bfloat16}, {"y": "int64", "z": "bfloat16", "int8": "int8"}),
        ({"int16": "float32"}, {"y": "float32", "z": "float32", "int8": "int8"}),
        ("bfloat16", {"y": "bfloat16", "z": "bfloat16", "int8": "bfloat16"}),
        ({"y": None}, {"y": "int32", "z": "int16", "int8": "int8"}),
    ],
    ids=str,
)
def test_types_of_what_a_graph_returns(backend, store, dtype, expected):
    """Names of the reader's outputs are of what the graph is given, others of what it returns."""

    def graph(nodes):
        return {"y": nodes["int16"] * 1, "z": nodes["int16"], "int8": nodes["int8"]}

    loader = zarr_dali.Loader(
        store, ["int8", "int16"], 5, device=device_of(backend), graph=graph, dtype=dtype
    )
    found = whole(loader)
    types = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in found.items()}
    assert types == expected
    for name, tensor in found.items():
        values = torch.from_numpy(values_of("i1" if name == "int8" else "i2"))
        assert torch.equal(tensor, values.to(tensor.dtype)), name


def test_types_of_what_a_graph_does_not_return(store):
    def loader(dtype):
        return zarr_dali.Loader(
            store, ["int8", "int16"], device="cpu", dtype=dtype, graph=lambda nodes: {"y": nodes["int8"]}
        )

    with pytest.raises(
        ValueError, match=r"""dtype: graph returns no output "z", only \['y'\]; .*'int16'\]"""
    ):
        loader({"z": "float32"})
    with pytest.raises(
        ValueError, match='graph returns no output "int8", of which bfloat16 is made behind it'
    ):
        loader({"int8": "bfloat16"})
    with pytest.raises(ValueError, match='graph returns no output "int8", of which bfloat16'):
        loader(["bfloat16", None])


def test_random_operators(backend, store):
    """Other numbers for each batch, epoch and rank; the same from the same seed, rank and place."""

    def make(rank, seed=3):
        def graph(nodes):
            return {"noise": fn.random.uniform(range=[0, 1]), **nodes}

        return zarr_dali.Loader(
            store, ["int8"], 3, device=device_of(backend), graph=graph, rank=rank, world_size=2, seed=seed,
            return_index=True,
        )  # fmt: skip

    def noise(loader):
        return [batch["noise"].cpu().numpy().tolist() for batch in loader]

    first, second = make(0), make(0)
    epochs = [noise(first), noise(first)]
    assert epochs == [noise(second), noise(second)]
    others = [noise(make(1)), noise(make(0, seed=4))]
    assert len({json.dumps(batch) for epoch in (*epochs, *others) for batch in epoch}) == 8
    state = second.state_dict()
    resumed = []
    for _ in range(2):
        loader = make(0)
        loader.load_state_dict(state)
        resumed.append(noise(loader))
    assert resumed[0] == resumed[1] != epochs[0]


# --- a function of the batch ----------------------------------------------------------------------


def test_transform(backend, store):
    """It gets what would be the batch, cut and cast, and its result is the batch."""
    seen = []

    def transform(batch):
        seen.append({name: (tensor.dtype, len(tensor)) for name, tensor in batch.items()})
        return batch["float32"][:, 0] * 2, batch["index"]

    loader = zarr_dali.Loader(
        store, ["float32"], 5, window=[2], device=device_of(backend), dtype="bfloat16", transform=transform,
        return_index=True,
    )  # fmt: skip
    batches = list(loader)
    lengths = [5, 5, 1]
    assert [one["float32"] for one in seen] == [(torch.bfloat16, length) for length in lengths]
    assert [len(x) for x, _ in batches] == lengths
    expected = torch.from_numpy(values_of("f4")[:-1]).bfloat16() * 2
    found = torch.cat([x.cpu() for x, _ in batches])
    np.testing.assert_array_equal(found.float().numpy(), expected.float().numpy())


def test_an_error_of_a_transform_ends_the_epoch_only(store):
    fails = [True]

    def transform(batch):
        if fails.pop() if fails else False:
            raise ZeroDivisionError("of the user")
        return batch["int8"]

    loader = zarr_dali.Loader(store, ["int8"], 5, device="cpu", transform=transform)
    with pytest.raises(ZeroDivisionError, match="of the user"):
        next(iter(loader))
    assert loader.state_dict()["batch"] == 1
    np.testing.assert_array_equal(torch.cat(list(loader)).numpy(), values_of("i1"))
    assert loader.epoch == 2


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"dtype": ["float32"]}, ValueError, r"dtype: \['float32'\] are 1, but the outputs are 2"),
        ({"dtype": {"t": "float32"}}, ValueError, r"dtype: there is no output 't', only \['int8', 'int16'\]"),
        ({"dtype": "text"}, TypeError, "text"),
        ({"dtype": ["float32", "text"]}, TypeError, "text"),
        ({"arrays": np.zeros((2, 3))}, TypeError, "arrays: a name has to be a text, not ndarray"),
        ({"layout": ["CHW"]}, ValueError, "layout.*are 1, but the outputs are 2"),
        ({"layout": 3}, TypeError, 'layout: has to be a text such as "CHW", not int'),
        ({"graph": "flip"}, TypeError, "graph: has to be a function of DALI's nodes, not str"),
        ({"graph": lambda nodes: None}, TypeError, "graph: has to return a dictionary.*not NoneType"),
        ({"graph": lambda nodes: {}}, TypeError, "graph: has to return DALI's nodes.*nothing"),
        ({"graph": lambda nodes: {"x": 3}}, TypeError, "graph: has to return DALI's nodes.*int"),
        ({"graph": lambda nodes: nodes["int8"]}, TypeError, r"as many nodes as it is given \(2\)"),
        ({"transform": 3}, TypeError, "transform: has to be a function of a batch, not int"),
        ({"select": {"exclude": "2010"}}, ValueError, "exclude is no dimension.*`exclude=` beside `select=`"),
        ({"select": {"arrays": "int8"}}, ValueError, "arrays is no dimension.*`arrays=`"),
    ],
)
def test_bad_arguments(store, arguments, error, words):
    with pytest.raises(error, match=words):
        zarr_dali.Loader(store, **{"arrays": ["int8", "int16"], "batch_size": 2, "device": "cpu"} | arguments)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"layout": "CHW"}, '"CHW" has 3 letters, but a sample of one of int8, y has 2 dimensions'),
        ({"layout": {"y": "HWC"}}, '"HWC" has 3 letters, but a sample of y has 2 dimensions'),
        ({"layout": ["", "HWC"], "window": [2, 2]}, None),
        ({"layout": ["WH", "HW"], "window": [2]}, '"WH" has 2 letters, but a sample of int8 has 3 dim'),
    ],
)
def test_layout_of_another_number_of_dimensions(store, arguments, words):
    loader = zarr_dali.Loader(store, ["int8", "int16"], 2, device="cpu", names={"int16": "y"}, **arguments)
    if words is None:
        next(iter(loader))
        return
    with pytest.raises(ValueError, match=f"^layout: {words}"):
        next(iter(loader))


@pytest.mark.parametrize(
    "graph, words",
    [
        (lambda node: fn.flip(node), r"fn.flip refuses .*`layout=` gives.*The layout [\s\S]*CHW$"),
        (
            lambda node: node * fn.cat(node, node, axis=1),
            "math.mul refuses what it is given: Can't broadcast",
        ),
        (
            lambda node: fn.slice(
                node, 0, fn.random.uniform(range=[1, 4], dtype=DALIDataType.INT32), axes=[2]
            ),
            "the samples of a batch have different shapes.*fn.crop",
        ),
        (lambda node: fn.cast(node, dtype=DALIDataType.UINT16), "an output is uint16, of which.*fn.cast"),
    ],
)
def test_operators_of_a_graph_that_refuse(store, graph, words):
    """Which argument of the Loader it is, and which operator."""
    loader = zarr_dali.Loader(
        store, "int8", 8, window=[2], device="cpu", graph=lambda nodes: graph(nodes["int8"])
    )
    with pytest.raises(ValueError, match=rf"^graph: {words}"):
        next(iter(loader))


def test_what_a_graph_moves_to_the_gpu_is_no_output_on_the_cpu(store):
    with pytest.raises(ValueError, match=r'graph: "y" is on the GPU, but the loader has device="cpu"'):
        zarr_dali.Loader(store, "int8", device="cpu", graph=lambda nodes: {"y": nodes["int8"].gpu()})


def test_samples_are_named_as_the_index_says(store):
    """With offsets that all lie ahead also by a negative one, which never counts from the end."""
    loader = zarr_dali.Loader(
        store, "int16", 2, device="cpu", offsets=[1, 4], samples=[-1, 2], return_index=True
    )
    (batch,) = loader
    assert batch["index"].tolist() == [[-1], [2]]
    np.testing.assert_array_equal(batch["int16"], values_of("i2")[[[0, 3], [3, 6]]])
    for wrong in (-2, STEPS - 4):
        with pytest.raises(ValueError, match=r"names no sample: along dimension 0 samples are at -1 to 7"):
            zarr_dali.Loader(store, "int16", device="cpu", offsets=[1, 4], samples=[wrong])


def test_what_the_reader_refuses_is_said_without_a_pipeline(store):
    """DALI's own text is what the error comes from."""
    with pytest.raises(
        ValueError, match=r"^argument `samples`: row 0, \[-1\], names no sample.*11$"
    ) as caught:
        zarr_dali.Loader(store, "int8", device="cpu", samples=[-1])
    assert "Critical error" in str(caught.value.__cause__)
    graph = {"graph": lambda nodes: nodes}
    with pytest.raises(ValueError, match=r"^argument `samples`"):
        zarr_dali.Loader(store, "int8", device="cpu", samples=[-1], **graph)


@pytest.mark.parametrize("arguments", [{}, {"batch_size": None}, {"batch_size": 2}, {"num_workers": 1}])
def test_a_data_loader_is_not_needed(store, arguments):
    """`DataLoader(loader)` says that there is nothing to wrap, with and without workers."""
    loader = zarr_dali.Loader(store, "int8", 2, device="cpu")
    with pytest.raises(TypeError, match=r"iterate over it directly.*for batch in loader"):
        next(iter(DataLoader(loader, **arguments)))
    assert len(whole(loader)["int8"]) == STEPS


@pytest.mark.skipif(gpu_problem() is None, reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_no_driver(store, device):
    with pytest.raises(RuntimeError, match=r'device is .cuda.*without a GPU give device="cpu"'):
        zarr_dali.Loader(store, "int8", 2, device=device)


@pytest.mark.gpu
def test_no_such_gpu(store):
    with pytest.raises(RuntimeError, match=r"device is .cuda:99., but there are \d+ GPUs"):
        zarr_dali.Loader(store, "int8", 2, device="cuda:99")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"offsets": ["-6h", "0h"]}, range(1, STEPS)),
        ({"offsets": [np.timedelta64(-6, "h"), np.timedelta64(0, "h")]}, range(1, STEPS)),
        ({"offsets": np.array([-6, 6], "timedelta64[h]")}, range(1, STEPS - 1)),
        ({"offsets": np.array([-6, 6], "timedelta64[h]").astype("timedelta64[ns]")}, range(1, STEPS - 1)),
        ({"offsets": "6h"}, range(-1, STEPS - 1)),
        ({"offsets": [-1, 0]}, range(1, STEPS)),
        ({"offsets": ["-6h", "0h"], "exclude": [3]}, [1, 2, *range(5, STEPS)]),
        ({"offsets": ["-6h", "0h"], "exclude": "2010-01-02"}, [1, 2, 3, 9, 10, 11]),
        ({"exclude": slice("2010-01-02", "2010-01-03")}, range(4)),
        ({"exclude": np.datetime64("2010-01-01T06")}, [0, *range(2, STEPS)]),
        ({"exclude": np.arange(STEPS) % 2 == 0}, range(1, STEPS, 2)),
        ({"exclude": 0, "offsets": [0]}, range(1, STEPS)),
        ({"exclude": range(2)}, range(2, STEPS)),
        ({"offsets": ["0h", "6h"], "roi_start": [4]}, range(4, STEPS - 1)),
    ],
)
@pytest.mark.gpu_where(False)
def test_times_without_select(backend, store, arguments, expected):
    """Time spans and labels in `offsets` and `exclude` are looked up where they are no indices."""
    loader = zarr_dali.Loader(store, ["int8"], 5, device=device_of(backend), return_index=True, **arguments)
    assert whole(loader)["index"].ravel().tolist() == list(expected)


def test_a_node_is_what_a_graph_gets(store):
    """The dictionary is the function's own: what it does to it changes nothing."""
    got = {}

    def graph(nodes):
        got.update(nodes)
        found = {"x": nodes.pop("int8")}
        nodes.clear()
        return found

    assert CPU.device == "cpu"
    loader = zarr_dali.Loader(store, ["int8", "int16"], 5, device="cpu", graph=graph)
    assert all(isinstance(node, DataNode) for node in got.values()) and list(got) == ["int8", "int16"]
    np.testing.assert_array_equal(whole(loader)["x"].numpy(), values_of("i1"))
