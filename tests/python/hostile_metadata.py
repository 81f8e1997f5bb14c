"""Metadata that is damaged, that lies, or that nobody can read: `../hostile.py` reads it."""

import bz2
import json
from random import Random

import numcodecs
import numpy as np

from cases import (
    BLOSC,
    BYTES,
    TIB,
    VALUES,
    WITH_RECHUNK,
    ZSTD,
    Read,
    add,
    case,
    metadata,
    metadata_v2,
    plain,
    put,
    read,
    sparse,
)
from chains import codec
from exotic import sharding
from stores import write_array, write_group

# --- the text of metadata -------------------------------------------------------------------------


def _deep(opening, closing, levels=100_000):
    return lambda text: (
        text[:-1] + b', "attributes": {"a": ' + opening * levels + b"0" + closing * levels + b"}}"
    )


TEXTS = {
    "empty": (lambda text: b"", "error"),
    "zeros": (lambda text: bytes(100), "error"),
    "cut-in-half": (lambda text: text[: len(text) // 2], "error"),
    "last-brace-missing": (lambda text: text.rstrip()[:-1], "error"),
    "twice": (lambda text: text + text, "error"),
    "rubbish-behind": (lambda text: text + b"}", "error"),
    "comma-too-many": (lambda text: text.rstrip()[:-1] + b",}", "error"),
    "single-quotes": (lambda text: text.replace(b'"', b"'"), "error"),
    "comment": (lambda text: b"// metadata\n" + text, "error"),
    "byte-order-mark": (lambda text: b"\xef\xbb\xbf" + text, "either"),
    "utf-16": (lambda text: text.decode().encode("utf-16"), "either"),
    "latin-1": (lambda text: text.rstrip()[:-1] + b', "attributes": {"a": "\xe9t\xe9"}}', "error"),
    "half-a-surrogate": (lambda text: text.rstrip()[:-1] + b', "attributes": {"a": "\\ud800"}}', "either"),
    "random-bytes": (lambda text: Random(1).randbytes(1000), "error"),
    "deep-lists": (lambda text: b"[" * 100_000, "error"),
    "deep-objects": (lambda text: b'{"a":' * 100_000, "error"),
    "deep-attributes": (lambda text: _deep(b"[", b"]")(text.rstrip()), "either"),
    "a-list": (lambda text: b"[]", "error"),
    "a-string": (lambda text: b'"zarr"', "error"),
    "a-number": (lambda text: b"1e308", "error"),
    "null": (lambda text: b"null", "error"),
    "keys-twice": (lambda text: b'{"shape": [99, 6], ' + text.lstrip()[1:], "either"),
    "100-MB-of-spaces": (lambda text: text + b" " * 100_000_000, "either"),
    "only-spaces": (lambda text: b" " * 100_000_000, "error"),
    "string-without-end": (lambda text: b'{"a": "' + b"x" * 1_000_000, "error"),
    "number-of-a-million-digits": (lambda text: b'{"a": ' + b"9" * 1_000_000 + b", " + text[1:], "either"),
}


def _with_text(zarr_format, change, expect):
    def make(folder):
        path = plain(folder, codec="raw", zarr_format=zarr_format)
        file = path / ("zarr.json" if zarr_format == 3 else ".zarray")
        file.write_bytes(change(file.read_bytes()))
        return read(path) if expect == "error" else Read(str(path), None)

    return make


for _format in (3, 2):
    for _name, (_change, _expect) in TEXTS.items():
        add(
            f"text-of-v{_format}-{_name}",
            "metadata text",
            _with_text(_format, _change, _expect),
            _expect,
        )


@case("metadata text", "error")
def text_sparse_behind(folder):
    """A good zarr.json, and behind it a terabyte of zeros that take no space."""
    path = plain(folder)
    sparse(path / "zarr.json", TIB)
    return read(path)


@case("metadata text", "error")
def text_sparse(folder):
    sparse(folder / "store.zarr" / "zarr.json", TIB)
    return read(folder / "store.zarr")


@case("metadata text", "error")
def text_sparse_of_v2(folder):
    path = plain(folder, codec="raw", zarr_format=2)
    sparse(path / ".zarray", TIB)
    return read(path)


@case("metadata text", "either")
def text_sparse_attributes(folder):
    path = plain(folder, codec="raw", zarr_format=2)
    sparse(path / ".zattrs", TIB)
    return read(path, VALUES)


@case("metadata text", "either")
def text_sparse_consolidated(folder):
    store = folder / "store.zarr"
    write_group(store, 2)
    write_array(store, "a", VALUES, chunks=(2, 6), codec="raw", zarr_format=2)
    sparse(store / ".zmetadata", TIB)
    return read(store, VALUES, arguments={"arrays": ["a"]})


@case("metadata text", "either")
def text_consolidated_is_rubbish(folder):
    store = folder / "store.zarr"
    write_group(store, 2)
    write_array(store, "a", VALUES, chunks=(2, 6), codec="raw", zarr_format=2)
    (store / ".zmetadata").write_text('{"metadata": [1, 2')
    return read(store, VALUES, arguments={"arrays": ["a"]})


# --- what metadata says ---------------------------------------------------------------------------


def _bad(change, **options):
    """The plain store with other metadata: entries are replaced, those that are `...` taken out."""

    def make(folder):
        path = plain(folder, **options)
        v2 = options.get("zarr_format") == 2
        file = path / (".zarray" if v2 else "zarr.json")
        meta = json.loads(file.read_text())
        for key, value in change.items():
            if value is ...:
                meta.pop(key, None)
            else:
                meta[key] = value
        file.write_text(json.dumps(meta))
        return read(path)

    return make


def _grid(shape, name="regular"):
    return {"chunk_grid": {"name": name, "configuration": {"chunk_shape": shape}}}


def _codecs(*chain):
    return {"codecs": list(chain)}


def _transpose(order):
    return _codecs(codec("transpose", order=order), BYTES)


def _sharding(**changes):
    (it,) = sharding([1, 6])
    changed = it["configuration"] | changes
    return _codecs(codec(it["name"], **{name: value for name, value in changed.items() if value is not ...}))


def _nested_shards(levels):
    """The plain store with a shard inside a shard inside a shard ..."""

    def make(folder):
        path = plain(folder)
        outer, inner = json.dumps(sharding([2, 6], ["INNER"])), json.dumps(sharding([2, 6]))
        before, behind = outer.split('["INNER"]')
        text = json.dumps(metadata([10, 6], [2, 6], ["INNER"]))
        (path / "zarr.json").write_text(text.replace('["INNER"]', before * levels + inner + behind * levels))
        return read(path)

    return make


FIELDS = {
    "shape-negative": {"shape": [-10, 6]},
    "shape-of-fractions": {"shape": [10.5, 6]},
    "shape-1e308": {"shape": [1e308, 6]},
    "shape-2-to-70": {"shape": [2**70, 6]},
    "shape-2-to-64": {"shape": [2**64, 6]},
    "shape-a-string": {"shape": "10"},
    "shape-of-strings": {"shape": ["10", "6"]},
    "shape-null": {"shape": None},
    "shape-of-lists": {"shape": [[10], 6]},
    "shape-true": {"shape": [True, 6]},
    "shape-missing": {"shape": ...},
    "shape-an-object": {"shape": {"0": 10}},
    "shape-nan": {"shape": [float("nan"), 6]},
    "chunks-zero": _grid([0, 6]),
    "chunks-negative": _grid([-2, 6]),
    "chunks-too-many": _grid([2, 6, 1]),
    "chunks-too-few": _grid([2]),
    "chunks-none": _grid([]),
    "chunks-of-fractions": _grid([2.5, 6]),
    "chunks-2-to-70": _grid([2**70, 6]),
    "chunks-null": _grid(None),
    "chunks-missing": {"chunk_grid": ...},
    "grid-unknown": _grid([2, 6], "hexagonal"),
    "grid-rectilinear": _grid([[2, 3, 5], [6]], "rectangular"),
    "grid-a-number": {"chunk_grid": 5},
    "grid-without-configuration": {"chunk_grid": {"name": "regular"}},
    "type-unknown": {"data_type": "float31"},
    "type-string": {"data_type": "string", "fill_value": ""},
    "type-raw-17-bits": {"data_type": "r17"},
    "type-null": {"data_type": None},
    "type-a-list": {"data_type": [["a", "float32"]]},
    "type-a-number": {"data_type": 4},
    "type-empty": {"data_type": ""},
    "type-with-configuration": {"data_type": {"name": "float32", "configuration": {"x": 1}}},
    "fill-missing": {"fill_value": ...},
    "fill-null": {"fill_value": None},
    "fill-a-word": {"fill_value": "many"},
    "fill-a-list": {"fill_value": [1, 2]},
    "fill-an-object": {"fill_value": {"a": 1}},
    "fill-hex-too-short": {"fill_value": "0x123"},
    "fill-hex-too-long": {"fill_value": "0x1234567890"},
    "fill-hex-wrong": {"fill_value": "0xzzzzzzzz"},
    "fill-too-large": {"data_type": "uint8", "fill_value": 300},
    "fill-negative": {"data_type": "uint32", "fill_value": -1},
    "fill-fraction-for-integer": {"data_type": "int32", "fill_value": 1.5},
    "fill-nan-for-integer": {"data_type": "int32", "fill_value": "NaN"},
    "fill-half-a-complex": {"data_type": "complex64", "fill_value": [1.0]},
    "fill-three-of-a-complex": {"data_type": "complex64", "fill_value": [1.0, 2.0, 3.0]},
    "codecs-none": _codecs(),
    "codecs-missing": {"codecs": ...},
    "codecs-null": {"codecs": None},
    "codecs-an-object": {"codecs": {"name": "bytes"}},
    "codecs-unknown": _codecs(BYTES, codec("magic", level=1)),
    "codecs-without-name": _codecs({"configuration": {}}),
    "codecs-name-a-number": _codecs({"name": 5}),
    "codecs-wrong-way-round": _codecs(ZSTD, BYTES),
    "codecs-bytes-twice": _codecs(BYTES, BYTES),
    "codecs-only-zstd": _codecs(ZSTD),
    "codecs-transpose-behind-bytes": _codecs(BYTES, codec("transpose", order=[1, 0])),
    "codecs-crc32c-before-bytes": _codecs({"name": "crc32c"}, BYTES),
    "codecs-bytes-between": _codecs(codec("transpose", order=[1, 0]), ZSTD, BYTES),
    "codecs-bytes-and-sharding": _codecs(BYTES, *sharding([1, 6])),
    "codecs-zstd-before-sharding": _codecs(ZSTD, *sharding([1, 6])),
    "codecs-endian-missing": _codecs({"name": "bytes"}),
    "codecs-endian-middle": _codecs(codec("bytes", endian="middle"), ZSTD),
    "codecs-zstd-level-a-word": _codecs(BYTES, codec("zstd", level="high", checksum=False)),
    "codecs-blosc-unknown": _codecs(BYTES, codec("blosc", **BLOSC | {"cname": "magic"})),
    "codecs-blosc-shuffle-unknown": _codecs(BYTES, codec("blosc", **BLOSC | {"shuffle": "riffle"})),
    "codecs-blosc-typesize-negative": _codecs(BYTES, codec("blosc", **BLOSC | {"typesize": -4})),
    "codecs-shuffle-huge": _codecs(BYTES, codec("numcodecs.shuffle", elementsize=2**40), ZSTD),
    "codecs-delta-of-words": _codecs(codec("numcodecs.delta", dtype="word", astype="word"), BYTES, ZSTD),
    "codecs-scale-zero": _codecs(
        codec("numcodecs.fixedscaleoffset", scale=0, offset=0, dtype="<f4", astype="<i2"), BYTES, ZSTD
    ),
    "transpose-twice-the-same": _transpose([0, 0]),
    "transpose-too-short": _transpose([0]),
    "transpose-too-long": _transpose([0, 1, 2]),
    "transpose-out-of-range": _transpose([5, 1]),
    "transpose-negative": _transpose([-1, 0]),
    "transpose-a-word": _transpose("backwards"),
    "transpose-empty": _transpose([]),
    "shards-not-divided": _sharding(chunk_shape=[3, 6]),
    "shards-in-larger-parts": _sharding(chunk_shape=[4, 6]),
    "shards-of-other-dimensions": _sharding(chunk_shape=[1]),
    "shards-of-nothing": _sharding(chunk_shape=[0, 6]),
    "shards-negative": _sharding(chunk_shape=[-1, 6]),
    "shards-parts-missing": _sharding(chunk_shape=...),
    "shards-index-in-the-middle": _sharding(index_location="middle"),
    "shards-index-without-codecs": _sharding(index_codecs=[]),
    "shards-index-compressed": _sharding(index_codecs=[BYTES, ZSTD]),
    "shards-index-sharded": _sharding(index_codecs=sharding([1, 1])),
    "shards-index-unknown": _sharding(index_codecs=[BYTES, codec("magic")]),
    "shards-without-codecs": _sharding(codecs=[]),
    "shards-with-unknown-codecs": _sharding(codecs=[BYTES, codec("magic")]),
    "shards-in-wrong-order": _sharding(codecs=[ZSTD, BYTES]),
    "format-1": {"zarr_format": 1},
    "format-4": {"zarr_format": 4},
    "format-a-string": {"zarr_format": "3"},
    "format-missing": {"zarr_format": ...},
    "node-unknown": {"node_type": "thing"},
    "node-missing": {"node_type": ...},
    "node-group": {"node_type": "group"},
    "field-to-be-understood": {"later": {"must_understand": True}},
    "field-unknown": {"later": 5},
    "transformers": {"storage_transformers": [codec("magic")]},
    "keys-unknown": {"chunk_key_encoding": codec("magic")},
    "keys-separator": {"chunk_key_encoding": codec("default", separator="x")},
    "keys-missing": {"chunk_key_encoding": ...},
    "names-too-many": {"dimension_names": ["a", "b", "c"]},
    "names-of-numbers": {"dimension_names": [1, 2]},
    "attributes-a-list": {"attributes": [1, 2]},
}
# What readers may let pass, as zarr-python does with some.
LENIENT = (
    *("codecs-blosc-typesize-negative", "field-unknown", "type-with-configuration", "attributes-a-list"),
    *("codecs-scale-zero", "format-a-string", "transpose-empty", "shape-true", "names-too-many"),
    *("fill-hex-too-short", "fill-null", "names-of-numbers", "transpose-negative"),
)
for _name, _change in FIELDS.items():
    add(
        f"metadata-{_name}",
        "metadata",
        _bad(_change),
        "either" if _name in LENIENT else "error",
        interfaces=WITH_RECHUNK if _name.startswith(("shards", "transpose", "chunks")) else WITH_RECHUNK[:2],
    )


@case("metadata", "values")
def metadata_shuffle_of_nothing(folder):
    """Below 1, numcodecs shuffles nothing."""
    made = _bad(_codecs(BYTES, codec("numcodecs.shuffle", elementsize=0), ZSTD))(folder)
    return read(made.path, VALUES)


# A shard inside a shard, a hundred times.
add("metadata-shards-nested-100", "metadata", _nested_shards(100), "either", patience=2)
add("metadata-shards-nested-10000", "metadata", _nested_shards(10_000), "either", patience=2)

FIELDS_V2 = {
    "type-unknown": {"dtype": "<f3"},
    "type-string": {"dtype": "|S10"},
    "type-object": {"dtype": "|O"},
    "type-unicode": {"dtype": "<U5"},
    "type-structure": {"dtype": [["a", "<f4"], ["b", "<i4"]]},
    "type-empty": {"dtype": ""},
    "type-null": {"dtype": None},
    "type-without-order": {"dtype": "f4"},
    "type-huge": {"dtype": "|V99999999999"},
    "type-of-no-unit": {"dtype": "<M8[parsecs]"},
    "chunks-zero": {"chunks": [0, 6]},
    "chunks-negative": {"chunks": [-2, 6]},
    "chunks-too-few": {"chunks": [2]},
    "chunks-missing": {"chunks": ...},
    "shape-missing": {"shape": ...},
    "shape-negative": {"shape": [-1, 6]},
    "compressor-unknown": {"compressor": {"id": "magic"}},
    "compressor-without-id": {"compressor": {"level": 1}},
    "compressor-a-list": {"compressor": [{"id": "zstd"}]},
    "compressor-a-word": {"compressor": "zstd"},
    "filters-an-object": {"filters": {"id": "shuffle"}},
    "filters-unknown": {"filters": [{"id": "magic"}]},
    "filters-null-inside": {"filters": [None]},
    "filters-pickle": {"filters": [{"id": "pickle", "protocol": 5}]},
    "order-unknown": {"order": "K"},
    "order-null": {"order": None},
    "fill-a-word": {"fill_value": "many"},
    "fill-a-list": {"fill_value": [1]},
    "format-3": {"zarr_format": 3},
    "format-missing": {"zarr_format": ...},
    "separator-unknown": {"dimension_separator": "|"},
}
LENIENT_V2 = ("type-without-order", "order-null", "separator-unknown")
for _name, _change in FIELDS_V2.items():
    add(
        f"metadata-of-v2-{_name}",
        "metadata",
        _bad(_change, codec="raw", zarr_format=2),
        "either" if _name in LENIENT_V2 else "error",
    )

NOT_IN_THE_LIST = "^(?!.*can be read:.*\\b{}\\b)"


@case("metadata", "either", says=NOT_IN_THE_LIST.format("bz2"))
def codec_bz2_of_v3(folder):
    """It is read, or not in the list of what can be read."""
    chunks = {f"c/{i}/0": bz2.compress(VALUES[2 * i : 2 * i + 2].tobytes()) for i in range(5)}
    meta = metadata([10, 6], [2, 6], [BYTES, codec("bz2", level=1)])
    return read(put(folder / "store.zarr", meta, chunks), VALUES)


@case("metadata", "either", says=NOT_IN_THE_LIST.format("packbits"))
def codec_packbits_of_v2(folder):
    values = np.arange(64).reshape(8, 8) % 3 == 0
    encoder = numcodecs.PackBits()
    meta = metadata_v2([8, 8], [2, 8], "|b1", filters=[{"id": "packbits"}], fill_value=False)
    chunks = {f"{i}.0": encoder.encode(values[2 * i : 2 * i + 2]).tobytes() for i in range(4)}
    return read(put(folder / "store.zarr", meta, chunks), values)


for _file, _text in (
    ("attributes-cut", b'{"units": "K"'),
    ("attributes-a-list", b"[1, 2]"),
    ("attributes-latin-1", b'{"units": "\xb0C"}'),
    ("attributes-empty", b""),
    ("attributes-deep", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
):

    def _with_attributes(folder, text=_text):
        path = plain(folder, codec="raw", zarr_format=2)
        (path / ".zattrs").write_bytes(text)
        return read(path, VALUES)

    add(f"metadata-of-v2-{_file}", "metadata", _with_attributes, "either")


@case("metadata", "error", says="group")
def metadata_of_a_group_inside_itself(folder):
    """A group whose array is a link to the group."""
    store = folder / "store.zarr"
    write_group(store)
    (store / "a").symlink_to(".")
    return read(store, arguments={"arrays": ["a"]})


@case("metadata", "either")
def metadata_of_a_loop_of_groups(folder):
    """Listing all arrays never ends for who follows links."""
    store = folder / "store.zarr"
    write_group(store)
    write_group(store / "g")
    for name in "bcd":
        (store / "g" / name).symlink_to("..")
    write_array(store, "a", VALUES, chunks=(2, 6))
    return read(store, VALUES, arguments={"arrays": ["a"]})


@case("metadata", "error", says="there are|not an array|does not exist")
def metadata_of_a_loop_of_groups_by_a_wrong_name(folder):
    made = metadata_of_a_loop_of_groups(folder)
    return Read(made.path, None, arguments={"arrays": ["none"]})
