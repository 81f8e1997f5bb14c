"""`zarr_dali.readers.zarr`: it says what the operator's schema says, and does what the operator does."""

import importlib.util
import inspect
import json
import os
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType

import numpy as np
import pytest
import torch
from nvidia.dali import Pipeline, backend, fn, pipeline_def, types
from nvidia.dali.data_node import DataNode
from nvidia.dali.ops import _signatures

import zarr_dali
from reading import CPU, bits, run_python, to_samples
from stores import write_array, write_group
from zarr_dali import readers

SCHEMA = backend.GetSchema("readers__Zarr")
GENERAL = {"device", "name"}
NAMES = sorted({name for name in SCHEMA.GetArgumentNames() if not SCHEMA.IsDeprecatedArg(name)} | GENERAL)
SIGNATURE = inspect.signature(readers.zarr)
PATH = str | os.PathLike[str]
HINTS = typing.get_type_hints(
    readers.zarr,
    vars(readers)
    | {"DataNode": DataNode, "DALIDataType": types.DALIDataType, "Paths": PATH | Sequence[PATH]},
)


def load_generator():
    """`docs/generate.py`, which is no package."""
    path = Path(__file__).parents[2] / "docs" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A group with two arrays of 20 steps; the first value of a step is its number."""
    path = tmp_path_factory.mktemp("readers") / "test.zarr"
    write_group(path)
    for name in ("a", "b"):
        steps = np.arange(20, dtype="float32")[:, None, None]
        values = steps + np.arange(12, dtype="float32").reshape(4, 3) / 16
        write_array(path, name, values, chunks=(4, 2, 3), dimension_names=("time", "y", "x"))
    return str(path)


# --- what it says ---------------------------------------------------------------------------------


def test_the_source_is_what_the_schema_says():
    assert Path(readers.__file__).read_text() == load_generator().wrapper(), "run python docs/generate.py"


def test_names():
    assert sorted(SIGNATURE.parameters) == NAMES
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in SIGNATURE.parameters.values())


@pytest.mark.parametrize("name", NAMES)
def test_default(name):
    """As DALI's own signature of the operator."""
    default = inspect.signature(fn.readers.zarr).parameters[name].default
    assert SIGNATURE.parameters[name].default == (default[0] if isinstance(default, list) else default)


OBJECT = (Mapping, (str, typing.Any))
OWN = {
    "offsets": {(Mapping, (str, Sequence[int]))},
    "storage_options": {OBJECT},
    "dimension_offsets": {OBJECT},
    "select": {OBJECT},
    "position": {OBJECT},
    "per_store": {(Sequence, (Mapping[str, typing.Any] | None,))},
    "normalize": {OBJECT, (Sequence, (typing.Any,)), (os.PathLike, (str,))},
}
"""What the wrapper takes beside what the operator does."""


def parts(hint):
    """The members of a union of types, however it is written."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    return {(typing.get_origin(member) or member, typing.get_args(member)) for member in members}


@pytest.mark.parametrize("name", sorted(set(NAMES) - GENERAL - {"path", "dtype"}))
def test_type(name):
    """As DALI annotates arguments of that type, but for choices among texts."""
    expected = _signatures._arg_type_annotation(SCHEMA.GetArgumentType(name), "fn")
    if typing.get_origin(HINTS[name]) is typing.Literal:
        assert expected is str
        assert SIGNATURE.parameters[name].default in typing.get_args(HINTS[name])
    else:
        optional = SIGNATURE.parameters[name].default is None
        wanted = parts(expected | None if optional else expected) | OWN.get(name, set())
        assert parts(HINTS[name]) == wanted


def test_type_of_types():
    assert SCHEMA.GetArgumentType("dtype") == types.DATA_TYPE
    assert HINTS["dtype"] is typing.Any


@pytest.mark.parametrize("name", ["decode", "io", "missing_chunks"])
def test_choices(name, store):
    """The texts that the type allows are those that the operator takes, or knows and cannot do here."""
    chosen = typing.get_args(HINTS[name])
    assert len(chosen) >= 2

    def problem(value):
        pipe = Pipeline(batch_size=2, num_threads=1, device_id=None)
        with pipe:
            pipe.set_outputs(fn.readers.zarr(path=f"{store}/a", device="cpu", **{name: value}))
        try:
            pipe.build()
        except ValueError as error:
            return str(error)
        return None

    unknown = problem("nonsense")
    assert all(f'"{value}"' in unknown for value in chosen)
    assert problem(chosen[0]) is None
    assert all(problem(value) != unknown.replace("nonsense", value) for value in chosen)


def test_every_argument_is_described():
    text = inspect.getdoc(readers.zarr)
    for name in NAMES:
        assert f"\n    {name}: " in text


def test_it_comes_with_the_package():
    done = run_python("import zarr_dali; print(zarr_dali.readers.zarr.__name__)")
    assert (done.returncode, done.stdout) == (0, "zarr\n"), done.stderr


# --- what it does ---------------------------------------------------------------------------------


def outputs_of(reader, backend, seed=None, **arguments):
    """For each output: the samples of the first two batches of 3."""
    settings = {} if seed is None else {"seed": seed}
    pipe = Pipeline(batch_size=3, num_threads=1, device_id=backend.device_id, **settings)
    with pipe:
        outputs = reader(device=backend.device, name="reader", **arguments)
        pipe.set_outputs(*(outputs if isinstance(outputs, list) else [outputs]))
    pipe.build()
    batches = [pipe.run() for _ in range(2)]
    return [sum((to_samples(output) for output in each), []) for each in zip(*batches)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"arrays": ["a", "b"]},
        {"arrays": ["a", "b"], "stack": True, "window": [2], "stride": [3], "return_index": True},
        {"arrays": ["a"], "random_shuffle": True, "seed": 3, "num_shards": 2, "shard_id": 1},
        {"arrays": ["b"], "offsets": [0, 3], "roi_start": [1], "roi_end": [15], "exclude": [5]},
        {"arrays": ["a"], "mean": [1.0], "std": [2.0], "dtype": types.FLOAT16, "decode": "cpu"},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_same_values_as_the_operator(backend, store, arguments):
    wrapped = outputs_of(readers.zarr, backend, path=store, **arguments)
    direct = outputs_of(fn.readers.zarr, backend, path=store, **arguments)
    assert len(wrapped) == len(direct)
    for ours, theirs in zip(wrapped, direct):
        assert len(ours) == len(theirs) == 6
        assert all(np.array_equal(bits(one), bits(other)) for one, other in zip(ours, theirs))


NUMBERS = {"a": {"mean": np.float32(2), "std": 4.0}}


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"select": {"y": [3, [0, 2]]}}, {"select": '{"y": [3, [0, 2]]}'}),
        ({"select": {"y": np.array([3, 0]), "x": [np.int64(1)]}}, {"select": '{"y": [3, 0], "x": [1]}'}),
        ({"select": {"y": range(1, 3)}}, {"select": '{"y": [1, 2]}'}),
        ({"normalize": NUMBERS}, {"normalize": '{"a": {"mean": 2, "std": 4}}'}),
        ({"normalize": [{"mean": 2, "std": 4}]}, {"normalize": '{"a": {"mean": 2, "std": 4}}'}),
        ({"storage_options": {"anon": True}}, {"storage_options": '{"anon": true}'}),
        ({"dimension_offsets": {"y": np.array([0, 2])}}, {"dimension_offsets": '{"y": [0, 2]}'}),
        ({"dtype": np.float16}, {"dtype": types.FLOAT16}),
        ({"dtype": np.dtype("int64")}, {"dtype": types.INT64}),
        ({"dtype": torch.float64}, {"dtype": types.FLOAT64}),
        ({"dtype": "int32"}, {"dtype": types.INT32}),
        ({"dtype": "FLOAT16"}, {"dtype": types.FLOAT16}),
    ],
    ids=str,
)
def test_dictionaries_and_types(store, given, plain):
    more = {"arrays": ["a"], "path": store}
    wrapped, direct = (
        outputs_of(readers.zarr, CPU, **more, **given),
        outputs_of(fn.readers.zarr, CPU, **more, **plain),
    )
    for ours, theirs in zip(wrapped[0], direct[0], strict=True):
        assert ours.dtype == theirs.dtype and np.array_equal(bits(ours), bits(theirs))


def test_regions_and_positions_as_objects(store):
    regions = [{"roi_start": [3]}, None]
    stores = {"path": [f"{store}/a", f"{store}/b"], "join": "separate"}
    (wrapped,) = outputs_of(readers.zarr, CPU, per_store=regions, **stores)
    assert [sample[0, 0] for sample in wrapped] == [3, 4, 5, 6, 7, 8]
    pipe = Pipeline(batch_size=3, num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(readers.zarr(path=f"{store}/a", name="reader", pad_last_batch=True))
    pipe.build()
    position = json.loads(json.dumps(zarr_dali.stats(pipe)["position"]))
    given = {"path": f"{store}/a", "pad_last_batch": True}
    assert len(outputs_of(readers.zarr, CPU, position=position, **given)[0]) == 6


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            {"select": {"y": slice(1, 2)}},
            TypeError,
            r"select: slice\(1, 2, None\) of y is no index; .*zarr_dali\.select",
        ),
        ({"select": {"time": ["2010"]}}, TypeError, r"select: '2010' of time is no index"),
        ({"select": [3]}, TypeError, r"select is \[3\], but has to be a dictionary"),
        ({"storage_options": 3}, TypeError, "storage_options: has to be a dictionary of options"),
        (
            {"per_store": [{"roi_start": 2j}]},
            TypeError,
            "per_store: it holds a complex, which JSON does not have",
        ),
        (
            {"normalize": "nowhere.json"},
            ValueError,
            "normalize: no statistics can be read from 'nowhere.json'",
        ),
        ({"dtype": "float33"}, TypeError, "dtype: 'float33' is no type of numbers"),
        ({"dtype": torch.bfloat16}, TypeError, "dtype: .*bfloat16 is no type of numbers"),
    ],
    ids=str,
)
def test_what_is_neither(store, given, error, words):
    with Pipeline(batch_size=1, num_threads=1, device_id=None), pytest.raises(error, match=words):
        readers.zarr(path=store, arrays=["a"], **given)


def test_paths(store):
    """A path object, and a list of them."""
    one = outputs_of(readers.zarr, CPU, path=Path(store, "a"))
    two = outputs_of(readers.zarr, CPU, path=[Path(store, "a"), Path(store, "b")])
    assert [sample[0, 0] for sample in one[0]] == [sample[0, 0] for sample in two[0]] == [0, 1, 2, 3, 4, 5]


def test_the_seed_of_the_pipeline_counts(store):
    """A default that was handed on would hide it."""
    orders = {
        tuple(
            float(sample[0, 0])
            for sample in outputs_of(reader, CPU, seed, path=f"{store}/a", random_shuffle=True)[0]
        )
        for reader in (readers.zarr, fn.readers.zarr)
        for seed in (5, 6)
    }
    assert len(orders) == 2


def test_inside_conditionals(store):
    """DALI rewrites the code of such pipelines, but not what they call."""

    @pipeline_def(batch_size=2, num_threads=1, device_id=None, enable_conditionals=True)
    def doubled():
        field = readers.zarr(path=f"{store}/a", device="cpu", name="reader")
        if fn.reductions.max(field) > 0:
            field = field * 2
        return field

    pipe = doubled()
    pipe.build()
    assert [sample[0, 0] for sample in to_samples(pipe.run()[0])] == [0, 2]


def test_what_is_wrong_is_said_by_the_operator(store):
    with pytest.raises(TypeError, match="windows"):
        readers.zarr(path=store, windows=[2])
    with pytest.raises(TypeError, match="path"):
        readers.zarr(arrays=["a"])
    with pytest.raises(ValueError, match="window"):
        outputs_of(readers.zarr, CPU, path=f"{store}/a", window=[21])
