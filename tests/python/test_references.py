"""References of kerchunk and VirtualiZarr as stores: the bits that zarr-python reads through fsspec, whoever
wrote the document and wherever it and what it refers to lie. Credentials go to their own host only, and what
a document must not name is refused.
"""

import json
import os
import shutil
import zipfile

import numpy as np
import pytest

import references
import zarr_dali
from range_server import serving, urls
from test_remote import CODECS, SHAPE, read, values, write
from tiers import quick

TOGETHER = (20, 2, *SHAPE[1:])
"""All values as the windows of `read`."""


@pytest.fixture
def served(tmp_path):
    """Folders for documents and for what they refer to, each to be served by a host of its own."""
    for name in ("documents/bucket", "data"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "documents", tmp_path / "data"


@pytest.mark.parametrize("writer", references.WRITERS)
def test_documents_of_all_writers_give_the_bits_of_zarr_python(served, rng, writer):
    documents, folder = served
    data, other = values(rng), rng.integers(0, 9, SHAPE[:2]).astype("i2")
    source = references.hdf5(folder / "x.h5", data, other)
    write_document = references.WRITERS[writer]
    document = write_document(source, documents / "bucket" / "local.json")
    expected = references.oracle(str(document))
    np.testing.assert_array_equal(expected["data"][:], data)
    for path in (str(document), f"reference::{document}", os.path.relpath(document)):
        found, _ = read(path, arrays=["data"])
        np.testing.assert_array_equal(found, expected["data"][:].reshape(TOGETHER))
        found, _ = read(path, arrays=["other"])
        np.testing.assert_array_equal(found, expected["other"][:].reshape(20, 2, SHAPE[1]))
    report = zarr_dali.info(str(document), device="cpu")
    assert {array.name: array.shape for array in report.arrays} == {"data": SHAPE, "other": SHAPE[:2]}
    with serving(documents) as server, serving(folder) as elsewhere:
        document = write_document(source, documents / "bucket" / "remote.json", f"{elsewhere.url}/x.h5")
        urls = [f"{server.url}/bucket/{document.name}", str(document)]
        urls += [f"reference::{urls[0]}/"] if document.is_dir() else [f"reference::{urls[0]}"]
        for url in urls:
            found, stats = read(url, arrays=["data"])
            np.testing.assert_array_equal(found, data.reshape(TOGETHER))
            assert stats["chunks_read"] > 0
        names = [array.name for array in zarr_dali.info(urls[0], device="cpu").arrays]
        assert names == ["data", "other"]
        assert {request["path"] for request in elsewhere.requests()} == {"/x.h5"}


@pytest.mark.parametrize("inline_below", [0, 200])
@pytest.mark.parametrize("kind", quick(CODECS, "raw", "zstd", "sharded"))
def test_references_to_every_kind_of_chunk_give_the_bits_of_the_folder(served, rng, kind, inline_below):
    documents, folder = served
    data = values(rng)
    # What is only fill value is in no reference; some chunks are short enough to be inline.
    data[8:16] = -1
    data[20:22] = 3
    write(folder / "data.zarr", data, kind)
    expected, _ = read(str(folder / "data.zarr"))
    blob, document = folder / "blob", documents / "bucket" / "refs.json"
    refs = references.of_store(folder / "data.zarr", blob, str(blob), inline_below)
    inline = [ref for ref in refs.values() if isinstance(ref, str) and ref.startswith("base64:")]
    assert bool(inline) == (inline_below > 0 and kind not in ("raw", "sharded"))
    for written in (refs, references.version_1(refs)):
        document.write_text(json.dumps(written))
        found, _ = read(str(document))
        np.testing.assert_array_equal(found, expected)
    # The document in a bucket, what it refers to on a web server.
    with serving(documents) as server, serving(folder) as elsewhere:
        refs = references.of_store(folder / "data.zarr", blob, f"{elsewhere.url}/blob", inline_below)
        document.write_text(json.dumps(references.version_1(refs)))
        for store in ("http", "s3"):
            url, options = urls(server.url)[store]
            url = url.replace("data.zarr", "refs.json")
            found, _ = read(url, storage_options=json.dumps(options))
            np.testing.assert_array_equal(found, expected)
        assert {request["method"] for request in server.requests() + elsewhere.requests()} == {"GET"}


def test_objects_may_be_named_relative_to_the_document_and_be_whole(served, rng):
    documents, _ = served
    data = values(rng)
    write(documents / "data.zarr", data, "zstd")
    refs = references.of_store(documents / "data.zarr", documents / "blob", "unused")
    for key, ref in refs.items():
        if isinstance(ref, list):
            refs[key] = [f"../data.zarr/{key}"]
    (documents / "bucket" / "refs.json").write_text(json.dumps(refs))
    with serving(documents) as server:
        for path in (str(documents / "bucket" / "refs.json"), f"{server.url}/bucket/refs.json"):
            found, _ = read(path)
            np.testing.assert_array_equal(found, data.reshape(TOGETHER))


def test_references_are_joined_shuffled_and_resumed_as_other_stores_are(served, rng):
    pytest.importorskip("torch")
    documents, folder = served
    data = values(rng)
    write(folder / "one.zarr", data[:20], "sharded")
    write(folder / "two.zarr", data[20:], "sharded")
    document = documents / "two.json"
    document.write_text(
        json.dumps(references.of_store(folder / "two.zarr", folder / "blob", str(folder / "blob")))
    )
    found, _ = read([str(folder / "one.zarr"), str(document)])
    np.testing.assert_array_equal(found, data.reshape(TOGETHER))
    settings = {"batch_size": 4, "window": [2], "shuffle": True, "device": "cpu", "seed": 3}
    local = [batch["data"].numpy() for batch in zarr_dali.Loader(str(folder / "two.zarr"), **settings)]
    loader = zarr_dali.Loader(str(document), **settings)
    steps = iter(loader)
    first = [next(steps)["data"].numpy() for _ in range(2)]
    again = zarr_dali.Loader(document, **settings)
    again.load_state_dict(loader.state_dict())
    for expected, batch in zip(local, first + [batch["data"].numpy() for batch in again], strict=True):
        np.testing.assert_array_equal(expected, batch)


def authorized(*servers):
    """Whether requests for the document had the header, and those for what it refers to."""
    sent = {"/bucket/refs.json": set(), "/blob": set()}
    for request in [request for server in servers for request in server.requests()]:
        sent[request["path"]].add("authorization" in request["headers"])
    return sent["/bucket/refs.json"], sent["/blob"]


@pytest.mark.parametrize(
    "place, options, sent",
    [
        ("here", "{}", (True, True)),
        ("elsewhere", "{}", (True, False)),
        ("elsewhere", "{elsewhere}", (False, True)),
        ("elsewhere", "{elsewhere}/blo", (False, False)),
        ("elsewhere", "{here}", (True, False)),
    ],
)
def test_credentials_are_sent_to_the_documents_host_and_to_no_other(served, rng, place, options, sent):
    documents, folder = served
    data = values(rng)
    write(folder / "data.zarr", data, "zstd")
    token = {"headers": {"authorization": "Bearer s3cr3t"}}
    with serving(documents) as here, serving(folder) as elsewhere:
        if options != "{}":
            token = {options.format(here=here.url, elsewhere=elsewhere.url): token}
        host, blob = (here, documents) if place == "here" else (elsewhere, folder)
        refs = references.of_store(folder / "data.zarr", blob / "blob", f"{host.url}/blob")
        (documents / "bucket" / "refs.json").write_text(json.dumps(refs))
        found, _ = read(f"{here.url}/bucket/refs.json", storage_options=json.dumps(token))
        np.testing.assert_array_equal(found, data.reshape(TOGETHER))
        assert authorized(here, elsewhere) == tuple({was} for was in sent)


def test_a_document_on_this_machine_sends_credentials_to_the_urls_that_they_are_given_for(served, rng):
    documents, folder = served
    data = values(rng)
    write(folder / "data.zarr", data, "raw")
    token = {"headers": {"authorization": "Bearer s3cr3t"}}
    with serving(folder) as elsewhere:
        refs = references.of_store(folder / "data.zarr", folder / "blob", f"{elsewhere.url}/blob")
        document = documents / "refs.json"
        document.write_text(json.dumps(refs))
        read(str(document), storage_options=json.dumps(token))
        assert authorized(elsewhere) == (set(), {False})
        read(str(document), storage_options=json.dumps({elsewhere.url: token}))
        assert authorized(elsewhere) == (set(), {False, True})
        # What is not there is an error that says why the credentials were not used, without them.
        (folder / "blob").unlink()
        with pytest.raises(RuntimeError, match="is not there") as error:
            read(str(document), storage_options=json.dumps(token))
        text = str(error.value)
        assert f'"{elsewhere.url}/blob"' in text and f'{{"{elsewhere.url}": {{...}}}}' in text
        assert "s3cr3t" not in text


def test_what_lies_elsewhere_names_no_file_of_this_machine(served, rng):
    documents, folder = served
    write(folder / "data.zarr", values(rng), "raw")
    document = documents / "bucket" / "refs.json"
    parquet = documents / "bucket" / "refs.parq"
    with serving(documents) as server:
        for name in (str(folder / "blob"), f"file://{folder}/blob"):
            refs = references.of_store(folder / "data.zarr", folder / "blob", name)
            document.write_text(json.dumps(refs))
            with pytest.raises((RuntimeError, ValueError), match="copy the document") as error:
                read(f"{server.url}/bucket/refs.json")
            assert name in str(error.value) and "c/0/0/0" in str(error.value)
            read(str(document))
        # Names in parquet files are known when they are read.
        df = pytest.importorskip("kerchunk.df", reason="kerchunk needs Python 3.11")
        write(folder / "v2.zarr", values(rng), "v2")
        refs = references.of_store(folder / "v2.zarr", folder / "blob", str(folder / "blob"))
        refs = {f"a/{key}": ref for key, ref in refs.items()} | {".zgroup": '{"zarr_format": 2}'}
        df.refs_to_dataframe(
            {key: json.dumps(ref) if isinstance(ref, dict) else ref for key, ref in refs.items()},
            str(parquet),
        )
        read(str(parquet), arrays=["a"])
        with pytest.raises(RuntimeError, match="copy the document"):
            read(f"{server.url}/bucket/refs.parq", arrays=["a"])


def test_files_outside_of_the_documents_folder_need_follow_links(served, rng):
    documents, folder = served
    data = values(rng)
    write(folder / "data.zarr", data, "raw")
    refs = references.of_store(folder / "data.zarr", folder / "blob", str(folder / "blob"))
    (documents / "refs.json").write_text(json.dumps(refs))
    read(str(documents / "refs.json"))
    with pytest.raises((RuntimeError, ValueError), match="follow_links=True") as error:
        read(str(documents / "refs.json"), follow_links=False)
    assert str(folder / "blob") in str(error.value)
    shutil.copy(documents / "refs.json", folder / "refs.json")
    found, _ = read(str(folder / "refs.json"), follow_links=False)
    np.testing.assert_array_equal(found, data.reshape(TOGETHER))


def test_only_the_document_says_what_is_missing(served, rng):
    documents, folder = served
    data = values(rng)
    write(folder / "data.zarr", data, "raw")
    refs = references.of_store(folder / "data.zarr", folder / "blob", str(folder / "blob"))
    document = documents / "refs.json"
    document.write_text(json.dumps({key: ref for key, ref in refs.items() if key != "c/1/0/0"}))
    expected = data.copy()
    expected[2:4, :12] = -1
    found, _ = read(str(document))
    np.testing.assert_array_equal(found, expected.reshape(TOGETHER))
    with pytest.raises(RuntimeError, match="missing"):
        read(str(document), missing_chunks="error")
    with (folder / "blob").open("r+b") as blob:
        blob.truncate(refs["c/9/1/0"][1] + 10)
    with pytest.raises(RuntimeError, match="end past its") as error:
        read(str(document), missing_chunks="fill-403")
    assert str(folder / "blob") in str(error.value) and "c/9/1/0" in str(error.value)
    (folder / "blob").unlink()
    with pytest.raises(RuntimeError, match="is not there"):
        read(str(document), missing_chunks="fill-403")
    with serving(folder, absent=403) as elsewhere:
        refs = references.of_store(folder / "data.zarr", folder / "blob", f"{elsewhere.url}/blob")
        document.write_text(json.dumps(refs))
        (folder / "blob").unlink()
        with pytest.raises(RuntimeError, match="blob"):
            read(str(document), missing_chunks="fill-403")


def refer_to_server(served, data, kind, url):
    """A document whose references are to `/c/blob` of a server at a URL."""
    documents, folder = served
    write(folder / "data.zarr", data, kind)
    (folder / "c").mkdir()
    refs = references.of_store(folder / "data.zarr", folder / "c" / "blob", f"{url}/c/blob")
    (documents / "refs.json").write_text(json.dumps(refs))
    return str(documents / "refs.json")


@pytest.mark.parametrize("kind", ["zstd", "sharded"])
def test_requests_that_fail_for_a_while_are_repeated(served, rng, kind):
    data = values(rng)
    with serving(served[1], kinds=["503", "reset", "short"], every=7) as server:
        found, stats = read(refer_to_server(served, data, kind, server.url))
        np.testing.assert_array_equal(found, data.reshape(TOGETHER))
        assert stats["requests_retried"] > 0


def test_an_object_that_changes_while_a_sharded_chunk_is_read_is_an_error(served, rng):
    with serving(served[1], kinds=["etag"], every=2) as server:
        document = refer_to_server(served, values(rng), "sharded", server.url)
        with pytest.raises(RuntimeError, match="changed while it was read") as error:
            read(document)
        assert f'"{server.url}/c/blob"' in str(error.value)


REFS = '".zgroup": "{}", "a/.zarray": {"zarr_format": 2}'
BAD = {
    "truncated": ("{" + REFS, "EOF"),
    "no reference at all": ("{}", "there are none in it"),
    "more behind it": ("{" + REFS + "} x", "trailing characters"),
    "a number": ('{"a/0": 7}', 'key "a/0"'),
    "two parts": ('{"a/0": ["x", 1]}', 'key "a/0".*offset, length'),
    "no URL": ('{"a/0": [null, 1, 2]}', 'key "a/0"'),
    "a negative offset": ('{"a/0": ["x", -1, 2]}', 'key "a/0"'),
    "a text as length": ('{"a/0": ["x", 1, "2"]}', 'key "a/0"'),
    "an offset past all objects": ('{"a/0": ["x", 18446744073709551615, 2]}', 'key "a/0".*no object has'),
    "no base64": ('{"a/0": "base64:%%"}', 'key "a/0".*base64'),
    "nothing": ("", "refs.json.*EOF"),
    "a list": ("[]", "refs.json.*expected"),
    "a byte order mark": ('\ufeff{"version": 1, "refs": {' + REFS + "}}", "refs.json.*expected value"),
    "another version": ('{"version": 3, "refs": {' + REFS + "}}", "of version 3"),
    "rules": ('{"version": 1, "refs": {' + REFS + '}, "gen": [{"key": "a/{{i}}"}]}', "rules"),
    "a template of templates": (
        '{"version": 1, "templates": {"u": "{{u}}{{u}}"}, "refs": {"a/0": ["{{u}}"]}}',
        'template "u" is no plain text',
    ),
    "an unknown template": (
        '{"version": 1, "templates": {"u": "x"}, "refs": {"a/0": ["{{v}}"]}}',
        'key "a/0".*{{v}}',
    ),
    "another scheme": ('{"a/0": ["ftp://host/x"]}', 'key "a/0".*ftp://'),
    "a signed URL": ('{"a/0": ["https://host/x?sig=s3cr3t"]}', 'key "a/0".*query'),
}


@pytest.mark.parametrize("what", BAD)
def test_documents_that_cannot_be_used_are_refused_when_the_pipeline_is_built(served, what):
    documents, _ = served
    text, problem = BAD[what]
    (documents / "refs.json").write_text(text)
    with pytest.raises((RuntimeError, ValueError), match=problem) as error:
        read(str(documents / "refs.json"), arrays=["a"])
    assert "refs.json" in str(error.value) and "s3cr3t" not in str(error.value)


def test_damaged_parquet_files_are_errors_that_name_the_file(served, rng):
    documents, folder = served
    intact_values = values(rng)
    source = references.hdf5(folder / "x.h5", intact_values, np.zeros(SHAPE[:2], "i2"))
    document = references.kerchunk_parquet(source, documents / "refs.json")
    file = document / "data" / "refs.1.parq"
    intact = file.read_bytes()
    for damaged in (b"", intact[:100], intact[:-1], intact[: len(intact) // 2] + bytes(40) + intact[-60:]):
        file.write_bytes(damaged)
        with pytest.raises(RuntimeError, match=r"data/refs\.1\.parq.*damaged|data/refs\.1\.parq.*column"):
            read(str(document), arrays=["data"])
    # Without the file there are no references to its chunks.
    file.unlink()
    found, _ = read(str(document), arrays=["data"])
    expected = np.zeros(SHAPE, "f4")
    expected[:16], expected[32:] = intact_values[:16], intact_values[32:]
    np.testing.assert_array_equal(found.reshape(SHAPE), expected)
    catalogue = document / ".zmetadata"
    for text, problem in [
        ('{"record_size": -1, "metadata": {}}', "record_size is -1"),
        ('{"record_size": 8, "metadata": {"data/.zarray": {}}}', "data/.zarray"),
        ('{"record_size": 8', "no JSON"),
    ]:
        catalogue.write_text(text)
        with pytest.raises((RuntimeError, ValueError), match=problem):
            read(str(document), arrays=["data"])


@pytest.mark.parametrize("kind", ["zip", "json"])
def test_a_folder_without_a_name_is_not_taken_for_the_one_that_it_is_in(tmp_path, kind):
    array = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<f4", "fill_value": 7, "order": "C"}
    objects = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        "a/.zarray": json.dumps({**array, "compressor": None, "filters": None}),
        "/x/.zattrs": "{}",
        "a//.zattrs": "{}",
    }
    path = tmp_path / f"s.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            for name, text in objects.items():
                file.writestr(name, text)
    else:
        path.write_text(json.dumps(objects))
    assert [found.name for found in zarr_dali.info(str(path), device="cpu").arrays] == ["a"]
    with pytest.raises(ValueError, match=r'"b" of .* is not an array; the arrays there are: "a"'):
        read(str(path), arrays=["b"])
