"""Arguments of a `Loader` by array, with `names`: by the array's name, or by its key in a batch."""

import numpy as np
import pytest
import torch

import zarr_dali
from stores import write_array, write_group

NUMBERS = {"mean": 2.0, "std": 4.0}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "two.zarr"
    write_group(path)
    for number, name in enumerate(("a", "in/b")):
        values = np.arange(number, number + 24, dtype="float32").reshape(4, 6)
        write_array(path, name, values, chunks=(2, 6), dimension_names=("time", "x"))
    return path


def batch_of(path, arrays, **arguments):
    with zarr_dali.Loader(path, arrays, 4, device="cpu", **arguments) as loader:
        (batch,) = loader
    return batch


NAMES = [["x", "y"], {"a": "x", "in/b": "y"}, ["x", "y", "place"]]


@pytest.mark.parametrize("names", NAMES, ids=["list", "dictionary", "index"])
@pytest.mark.parametrize("given", [("x", "y"), ("a", "in/b"), ("a", "y"), ("x", "/in/b")], ids="-".join)
def test_arrays_are_named_either_way(store, names, given):
    plain = batch_of(store, ["a", "in/b"])
    first, second = given
    batch = batch_of(
        store,
        ["a", "in/b"],
        names=names,
        return_index=len(names) == 3,
        normalize={first: NUMBERS, second: None},
        dtype={second.strip("/"): "int64"},
        layout={first: "W"},
    )
    torch.testing.assert_close(batch["x"], (plain["a"] - 2) / 4, rtol=0, atol=0)
    torch.testing.assert_close(batch["y"], plain["in/b"].to(torch.int64), rtol=0, atol=0)


def test_text_and_one_of_several(store, tmp_path):
    plain = batch_of(store, ["a", "in/b"])
    file = tmp_path / "stats.json"
    # As `zarr_dali.statistics` writes it, also of arrays that are not read.
    file.write_text('{"y": {"mean": 2, "std": 4}, "x": null, "unread": {"mean": 0, "std": 1}}')
    for normalize in (file, file.read_text(), '{"y": {"mean": 2, "std": 4}}', [None, NUMBERS]):
        batch = batch_of(store, ["a", "in/b"], names=["x", "y"], normalize=normalize)
        torch.testing.assert_close(batch["x"], plain["a"], rtol=0, atol=0)
        torch.testing.assert_close(batch["y"], (plain["in/b"] - 2) / 4, rtol=0, atol=0)


@pytest.mark.parametrize(("names", "key"), [(None, "data"), ("x", "x"), (None, "a")])
def test_an_array_by_itself(store, names, key):
    batch = batch_of(store / "a", None, names=names, normalize={key: NUMBERS})
    torch.testing.assert_close(batch[names or "data"], (batch_of(store, "a")["a"] - 2) / 4, rtol=0, atol=0)


def test_one_array_twice(store):
    plain = batch_of(store, "a")["a"]
    arguments = {"names": ["x", "y"], "dtype": {"x": "int32"}}
    batch = batch_of(store, ["a", "a"], normalize={"y": NUMBERS}, **arguments)
    torch.testing.assert_close(batch["x"], plain.to(torch.int32), rtol=0, atol=0)
    torch.testing.assert_close(batch["y"], (plain - 2) / 4, rtol=0, atol=0)
    both = batch_of(store, ["a", "a"], names=["x", "y"], normalize={"a": NUMBERS})
    torch.testing.assert_close(both["x"], both["y"], rtol=0, atol=0)


def test_stacked_arrays_have_their_own_names(store):
    batch = batch_of(store, ["a", "in/b"], stack=True, normalize={"a": NUMBERS, "in/b": NUMBERS})
    plain = batch_of(store, ["a", "in/b"], stack=True)
    torch.testing.assert_close(batch["data"], (plain["data"] - 2) / 4, rtol=0, atol=0)


WRONG = [
    # One name for two arrays: a key of the one, and the name of the other.
    (
        ["in/b", "a"],
        "a",
        '"a" is the key of the array "in/b" in a batch, and the name of the array whose key is "in/b"',
    ),
    (
        ["x", "y"],
        ("a", "x"),
        '"a" and "x" are both the array "a", whose key in a batch is "x"; leave one out',
    ),
]


@pytest.mark.parametrize(("names", "given", "words"), [({"a": "in/b", "in/b": "a"}, *WRONG[0][1:]), WRONG[1]])
def test_what_could_be_two_is_refused(store, names, given, words):
    given = [given] if isinstance(given, str) else given
    for argument, value in (("normalize", NUMBERS), ("dtype", "int64"), ("layout", "W")):
        with pytest.raises(ValueError, match=f"{argument}: {words}"):
            zarr_dali.Loader(
                store, ["a", "in/b"], device="cpu", names=names, **{argument: dict.fromkeys(given, value)}
            )


def test_what_is_neither_is_refused(store):
    given = {"names": ["x", "y"], "device": "cpu"}
    with pytest.raises(ValueError, match=r'normalize: it names "z", which is no array .*, and not "y"'):
        zarr_dali.Loader(store, ["a", "in/b"], normalize={"x": NUMBERS, "z": NUMBERS}, **given)
    with pytest.raises(
        ValueError, match=r"dtype: there is no output 'z', only \['x', 'y'\] of the arrays \['a', "
    ):
        zarr_dali.Loader(store, ["a", "in/b"], dtype={"z": "int64"}, **given)
