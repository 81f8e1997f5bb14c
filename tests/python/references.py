"""Documents of references for the tests, written by kerchunk, by VirtualiZarr and by hand."""

import base64
import json

import fsspec
import pytest
import zarr


def oracle(document):
    """What zarr-python reads through fsspec's reference filesystem: a group of all arrays."""
    fs = fsspec.filesystem("reference", fo=document, asynchronous=True)
    return zarr.open_group(zarr.storage.FsspecStore(fs, read_only=True), mode="r")


def of_store(folder, blob, name, inline_below=0):
    """References, by key, to the chunks of a store: all of them are copied into the file `blob`, one behind
    the other, which is called `name`; those of fewer bytes are written inline."""
    refs = {}
    with blob.open("wb") as joined:
        joined.write(b"in front")
        offset = joined.tell()
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            key, data = str(path.relative_to(folder)), path.read_bytes()
            if path.name in ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"):
                refs[key] = json.loads(data) if "a" in path.name else data.decode()
            elif len(data) < inline_below:
                refs[key] = "base64:" + base64.b64encode(data).decode()
            else:
                joined.write(data)
                refs[key] = [name, offset, len(data)]
                offset += len(data)
    return refs


def version_1(refs):
    """The same references with templates for what their URLs begin with."""
    urls = {ref[0] for ref in refs.values() if isinstance(ref, list)}
    templates = {f"u{number}": url[: len(url) // 2] for number, url in enumerate(sorted(urls))}
    names = {url: f"{{{{u{number}}}}}{url[len(url) // 2 :]}" for number, url in enumerate(sorted(urls))}
    refs = {key: [names[ref[0]], *ref[1:]] if isinstance(ref, list) else ref for key, ref in refs.items()}
    return {"version": 1, "templates": templates, "refs": refs}


def hdf5(path, data, other):
    """A file of HDF5 with two data sets in chunks of two steps, of which the first is compressed."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        chunks = (2, *data.shape[1:])
        file.create_dataset("data", data=data, chunks=chunks, compression="gzip", shuffle=True)
        file.create_dataset("other", data=other, chunks=(2, *other.shape[1:]))
    return path


def kerchunk_json(source, document, url=None):
    hdf = pytest.importorskip("kerchunk.hdf", reason="kerchunk needs Python 3.11")
    found = json.dumps(hdf.SingleHdf5ToZarr(str(source), inline_threshold=300).translate())
    document.write_text(found.replace(str(source), url or str(source)))
    return document


def kerchunk_parquet(source, document, url=None):
    df = pytest.importorskip("kerchunk.df", reason="kerchunk needs Python 3.11")
    refs = json.loads(kerchunk_json(source, document.with_name("to-parquet.json"), url).read_text())
    document = document.with_suffix(".parq")
    df.refs_to_dataframe(refs, str(document), record_size=8, categorical_threshold=2)
    return document


def _virtual(source):
    virtualizarr = pytest.importorskip("virtualizarr", reason="VirtualiZarr needs Python 3.11")
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    return virtualizarr.open_virtual_dataset(f"file://{source}", registry=registry, parser=HDFParser())


def _renamed(dataset, url):
    return dataset.vz.rename_paths(url) if url else dataset


def virtualizarr_json(source, document, url=None):
    _renamed(_virtual(source), url).vz.to_kerchunk(str(document), format="json")
    return document


def virtualizarr_parquet(source, document, url=None):
    document = document.with_suffix(".parquet")
    _renamed(_virtual(source), url).vz.to_kerchunk(str(document), format="parquet", record_size=6)
    return document


WRITERS = {
    writer.__name__: writer
    for writer in (kerchunk_json, kerchunk_parquet, virtualizarr_json, virtualizarr_parquet)
}
