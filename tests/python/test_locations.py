"""Objects of other libraries in the place of a path: the same values as by the path, and errors that help."""

import json
import zipfile
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import zarr_dali
from range_server import serving
from reading import CPU
from stores import FORMATS
from test_loader import device_of
from zarr_dali import _credentials, _icechunk_session, _locations

zarr = pytest.importorskip("zarr", minversion="3")
xr = pytest.importorskip("xarray")
if 3 not in FORMATS:
    pytest.skip("these are objects of zarr-python 3", allow_module_level=True)

STEPS = 11
VALUES = np.arange(STEPS * 12, dtype="float32").reshape(STEPS, 3, 4)


def dataset():
    dims = ("time", "lat", "lon")
    times = np.datetime64("2010-01-01", "ns") + np.arange(STEPS) * np.timedelta64(6, "h")
    return xr.Dataset(
        {"a": (dims, VALUES), "b": (dims, -VALUES), "scaled": (dims, VALUES.astype("f8") / 4 + 1)},
        {"time": times, "lat": [3.0, 2.0, 1.0], "lon": np.arange(4.0)},
    )


def write(store):
    """Two groups, the root and `inner/deep`, with the same arrays."""
    encoding = {name: {"chunks": (2, 3, 4)} for name in ("a", "b", "scaled")}
    encoding["scaled"] |= {"dtype": "i2", "scale_factor": 0.25, "add_offset": 1.0}
    for group in (None, "inner/deep"):
        dataset().to_zarr(
            store, group=group, zarr_format=3, consolidated=False, mode="a",
            encoding=encoding,
        )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    write(str(folder / "w.zarr"))
    write(str(folder / "w2.zarr"))
    with zipfile.ZipFile(folder / "w.zip", "w") as archive:
        for file in sorted((folder / "w.zarr").rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder / "w.zarr"))
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    icechunk = pytest.importorskip("icechunk")
    place = tmp_path_factory.mktemp("ice") / "bucket" / "repo"
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(place)))
    session = made.writable_session("main")
    write(session.store)
    session.commit("data")
    later = made.writable_session("main")
    zarr.open_group(later.store)["a"][:] = 0.0
    later.commit("later")
    return made


def whole(loader):
    batches = list(loader)
    return {name: torch.cat([batch[name].cpu() for batch in batches]).numpy() for name in batches[0]}


def assert_reads(backend, source, arrays=("a", "b"), **arguments):
    """What a loader reads of `source` are the arrays that `write` wrote."""
    found = whole(zarr_dali.Loader(source, arrays, 4, device=device_of(backend), **arguments))
    wanted = {"a": VALUES, "b": -VALUES}
    assert list(found) == list(arrays or ["data"])
    for name, values in found.items():
        np.testing.assert_array_equal(values, wanted.get(name, VALUES))


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["w.zarr", "a b%20c.zarr", "100%.zarr"])
def test_home_and_file_urls(tmp_path, monkeypatch, name):
    """Everywhere where a path is taken; escapes of URLs are undone, unless a folder has that very name."""
    write(str(tmp_path / name))
    monkeypatch.setenv("HOME", str(tmp_path))
    given = [f"~/{name}", f"file://{tmp_path}/{name}", (tmp_path / name).as_uri()]
    given += [f"file://localhost{tmp_path}/{name}", f"FILE://{tmp_path}/{name}"]
    for path in given:
        assert_reads(CPU, path)
        assert zarr_dali.select(path, arrays=["a"], time="2010-01-02")["path"] == str(tmp_path / name)
        assert zarr_dali.info(path, ["a"], device="cpu").path == (str(tmp_path / name),)
        np.testing.assert_array_equal(zarr.open_group(zarr_dali.open_store(path), mode="r")["a"][:], VALUES)
    assert_reads(CPU, f"~/{name}", select={"lat": slice(3, 1)})
    copy = zarr_dali.rechunk(f"~/{name}", "~/copy.zarr", chunks={"time": 3}, variables=["a"])
    assert copy.plan.source == str(tmp_path / name) and (tmp_path / "copy.zarr").is_dir()


def test_patterns_and_lists_of_them(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    for path in ("~/w.za*", f"file://{folder}/w.za*", ["~/w.zarr"], (f"file://{folder}/w.zarr",)):
        assert_reads(CPU, path)
    two = whole(zarr_dali.Loader(["~/w.zarr", folder / "w2.zarr"], ["a"], 4, device="cpu"))["a"]
    np.testing.assert_array_equal(two, np.concatenate([VALUES] * 2))


def test_file_url_of_a_host():
    with pytest.raises(ValueError, match="file://server/x names a host; give file:///"):
        zarr_dali.Loader("file://server/x", device="cpu")


# --- zarr-python ----------------------------------------------------------------------------------


def in_fsspec(folder, protocol="file"):
    import fsspec

    if protocol == "dir":
        return fsspec.filesystem("dir", path=str(folder), fs=fsspec.filesystem("file")).get_mapper("w.zarr")
    return fsspec.get_mapper(f"{protocol}://{folder}/w.zarr")


LOCAL = {
    "group": lambda folder: zarr.open_group(folder / "w.zarr", mode="r"),
    "inner group": lambda folder: zarr.open_group(folder / "w.zarr", path="inner/deep", mode="r"),
    "store": lambda folder: zarr.storage.LocalStore(folder / "w.zarr"),
    "store and path": lambda folder: zarr.storage.StorePath(
        zarr.storage.LocalStore(folder / "w.zarr"), "inner/deep"
    ),
    "wrapped": lambda folder: zarr.open_group(
        zarr.storage.LoggingStore(zarr.storage.LocalStore(folder / "w.zarr")), mode="r"
    ),
    "zip": lambda folder: zarr.storage.ZipStore(folder / "w.zip", mode="r"),
    "in a zip": lambda folder: zarr.open_group(
        zarr.storage.ZipStore(folder / "w.zip", mode="r"), path="inner/deep", mode="r"
    ),
    "fsspec's mapper": in_fsspec,
    "cached by fsspec": lambda folder: in_fsspec(folder, "simplecache::file"),
    "folder of fsspec": lambda folder: in_fsspec(folder, "dir"),
    "of fsspec": lambda folder: zarr.open_group(
        zarr.storage.FsspecStore.from_mapper(in_fsspec(folder), read_only=True), path="inner/deep", mode="r"
    ),
    "our own": lambda folder: zarr_dali.open_store(folder / "w.zarr"),
    "group of our own": lambda folder: zarr.open_group(
        zarr_dali.open_store(folder / "w.zarr"), path="inner/deep", mode="r"
    ),
    "obstore": lambda folder: pytest.importorskip("obstore").store.LocalStore(folder / "w.zarr"),
    "of obstore": lambda folder: zarr.open_group(
        zarr.storage.ObjectStore(pytest.importorskip("obstore").store.LocalStore(folder / "w.zarr")), mode="r"
    ),
    "list": lambda folder: [zarr.open_group(folder / "w.zarr", mode="r")],
}


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.gpu_where(lambda case: case["kind"] in ("group", "in a zip"))
def test_stores_and_groups(backend, folder, kind):
    source = LOCAL[kind](folder)
    assert_reads(backend, source)
    assert_reads(backend, source, select={"time": slice("2010", "2011")})
    chosen = zarr_dali.select(source, arrays=["a"], time="2010-01-02")
    assert (chosen["roi_start"], chosen["roi_end"]) == ([4], [8])
    assert [report.name for report in zarr_dali.info(source, ["a"], device="cpu").arrays] == ["a"]


def test_arrays(backend, folder):
    """An array is what it is, wherever it lies."""
    for path in ("a", "inner/deep/a"):
        array = zarr.open_array(folder / "w.zarr", path=path, mode="r")
        assert_reads(backend, array, ())
        assert_reads(backend, array, (), select={"time": slice("2010", "2011")})
    with pytest.raises(ValueError, match="array"):
        zarr_dali.Loader(zarr.open_array(folder / "w.zarr", path="a", mode="r"), ["a"], device="cpu")


# --- elsewhere ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fsspec", "obstore", "obstore alone", "our own"])
def test_web_servers(folder, kind):
    """With the headers that the objects send, which the server insists on."""
    headers = {"authorization": "Bearer s3cr3t"}
    with serving(folder) as server:
        url = f"{server.url}/w.zarr"
        if kind == "fsspec":
            pytest.importorskip("aiohttp")
            source = zarr.storage.FsspecStore.from_url(
                url, storage_options={"client_kwargs": {"headers": headers}}, read_only=True
            )
        elif kind.startswith("obstore"):
            obstore = pytest.importorskip("obstore")
            made = obstore.store.HTTPStore.from_url(
                url, client_options={"allow_http": True, "default_headers": headers}
            )
            source = made if kind == "obstore alone" else zarr.storage.ObjectStore(made, read_only=True)
        else:
            source = zarr_dali.open_store(url, {"headers": headers})
        location = _locations.located(source)
        assert location.path == url and "s3cr3t" in json.dumps(location.storage_options)
        assert_reads(CPU, source)


def test_s3_with_signatures(folder, tmp_path):
    """Keys, region and endpoint of obstore's store are those that the server takes, and no others."""
    import real_servers

    obstore = pytest.importorskip("obstore")
    (tmp_path / "bucket").symlink_to(folder)
    with real_servers.hadro(tmp_path) as served:
        keys = {"access_key_id": "KEY", "secret_access_key": served.options["secret"], "region": "eu-west-2"}
        more = {"endpoint": served.endpoint, "client_options": {"allow_http": True, "timeout": "20 seconds"}}
        retries = {"max_retries": 1, "retry_timeout": timedelta(seconds=5)}
        store = obstore.store.S3Store("bucket", prefix="w.zarr", **keys, **more, retry_config=retries)
        source = zarr.open_group(zarr.storage.ObjectStore(store, read_only=True), path="inner/deep", mode="r")
        assert_reads(CPU, source)
        with pytest.raises(ValueError, match=r"403|denied|Forbidden"):
            zarr_dali.Loader(
                source, ["a"], device="cpu",
                storage_options=served.options | {"secret": "wrong"},
            )  # fmt: skip
        icechunk = pytest.importorskip("icechunk")
        (folder / "repo").exists() or make_repository(icechunk, folder / "repo")
        place = {"bucket": "bucket", "prefix": "repo", "endpoint_url": served.endpoint, "allow_http": True}
        storage = icechunk.s3_storage(**place, **keys, force_path_style=True)
        session = icechunk.Repository.open(storage).readonly_session("main")
        assert_reads(CPU, session.store)
        # Credentials of a function are not looked into.
        storage = icechunk.s3_storage(
            **place, region="eu-west-2", force_path_style=True, get_credentials=static_credentials
        )
        session = icechunk.Repository.open(storage).readonly_session("main")
        with pytest.raises(ValueError, match=r's3://bucket/repo are made by a function.*"key", "secret"'):
            zarr_dali.Loader(session, ["a"], device="cpu")
        assert_reads(CPU, session, storage_options=served.options)


def static_credentials():
    import icechunk

    import real_servers

    return icechunk.S3StaticCredentials("KEY", real_servers.SECRET)


def make_repository(icechunk, place):
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(place)))
    session = made.writable_session("main")
    write(session.store)
    session.commit("data")


@pytest.mark.parametrize(
    "scheme, options, expected",
    [
        ("s3", {"anon": True, "asynchronous": True, "loop": object()}, {"anon": True}),
        ("s3", {"key": "k", "secret": "s", "token": None}, {"key": "k", "secret": "s"}),
        (
            "s3",
            {
                "profile": "p",
                "client_kwargs": {"endpoint_url": "http://h", "region_name": "r", "verify": "/pem"},
            },
            {"profile": "p", "endpoint_url": "http://h", "region_name": "r", "ca_bundle": "/pem"},
        ),
        ("s3", {"session": object()}, r"session of the Fs is a object.*\"key\", \"secret\""),
        ("s3", {"username": "u"}, r"username of the Fs is not an option.*\"key\""),
        ("gs", {"token": "anon", "project": "p"}, {"token": "anon"}),
        ("gs", {"token": "google_default"}, {}),
        ("gs", {"token": {"client_email": "x"}}, {"token": {"client_email": "x"}}),
        ("gs", {"token": "browser"}, r"token of the Fs.*\"token\", a file"),
        ("gs", {"token": object()}, r"token of the Fs is a object"),
        ("az", {"account_name": "a", "sas_token": "t"}, {"account_name": "a", "sas_token": "t"}),
        ("az", {"credential": object()}, r"credential of the Fs.*\"account_name\""),
        ("az", {"connection_string": "AccountKey=s3cr3t"}, r"connection_string of the Fs.*\"account_key\""),
        ("https", {"headers": {"a": "b"}, "block_size": 3}, {"headers": {"a": "b"}}),
        ("https", {"client_kwargs": {"auth": object()}}, r"auth of the Fs is a object.*\"headers\""),
    ],
)
def test_credentials_of_fsspec(scheme, options, expected):
    """They are taken over, or asked for by name, and shown in no error."""
    fs = type("Fs", (), {"storage_options": options, "protocol": scheme})()
    if isinstance(expected, dict):
        assert _credentials.of_fsspec(fs, scheme) == expected
        return
    with pytest.raises(ValueError, match=expected) as error:
        _credentials.of_fsspec(fs, scheme)
    assert "s3cr3t" not in str(error.value)


def test_credential_providers_of_obstore(folder):
    obstore = pytest.importorskip("obstore")
    store = obstore.store.S3Store("bucket", region="r", credential_provider=lambda: None)
    with pytest.raises(ValueError, match=r'credential_provider of the S3Store.*"key", "secret"'):
        zarr_dali.Loader(zarr.storage.ObjectStore(store), ["a"], device="cpu")
    location = _locations.located(zarr.storage.ObjectStore(store), {"anon": True})
    assert (location.path, location.storage_options) == ("s3://bucket", {"anon": True})


def test_clouds_of_obstore():
    stores = pytest.importorskip("obstore").store
    for store, path, options in [
        (stores.GCSStore("b", prefix="p/q", skip_signature=True), "gs://b/p/q", {"skip_signature": "true"}),
        (
            stores.AzureStore("c", account_name="n", account_key="a2V5"), "az://c",
            {"account_name": "n", "account_key": "a2V5"},
        ),
    ]:  # fmt: skip
        location = _locations.located(zarr.storage.ObjectStore(store))
        assert (location.path, location.storage_options) == (path, options)


def test_options_of_joined_stores_stay_with_their_own():
    stores = pytest.importorskip("obstore").store
    parts = [stores.S3Store(bucket, skip_signature=True, region=bucket) for bucket in ("x", "y")]
    location = _locations.located([zarr.storage.ObjectStore(part) for part in parts])
    assert location.path == ["s3://x", "s3://y"]
    assert {path: options["region"] for path, options in location.storage_options.items()} == {
        "s3://x": "x",
        "s3://y": "y",
    }


def test_options_of_joined_stores_of_our_own(folder):
    """They are text there, and some are under URLs already."""
    options = [{"headers": {"a": "b"}}, {"headers": {"c": "d"}, "s3://elsewhere": {"anon": True}}, None]
    urls = [f"https://host{number}/w.zarr" for number in range(3)]
    stores = [zarr_dali.open_store(url, one) for url, one in zip(urls, options)]
    assert _locations.located([*stores, folder / "w.zarr"]).storage_options == {
        urls[0]: {"headers": {"a": "b"}},
        urls[1]: {"headers": {"c": "d"}},
        "s3://elsewhere": {"anon": True},
    }
    assert _locations.located([folder / "w.zarr"]).storage_options is None


# --- Icechunk -------------------------------------------------------------------------------------


def test_icechunk_sessions(backend, repository):
    """The snapshot of the session, not the one that the branch has since."""
    first = list(repository.ancestry(branch="main"))[1].id
    session = repository.readonly_session(snapshot_id=first)
    for source in (session, session.store, zarr.open_group(session.store, path="inner/deep", mode="r")):
        assert_reads(backend, source)
        location = _locations.located(source)
        assert f"|icechunk:@{first}" in location.path and location.storage_options is None
    latest = repository.readonly_session("main")
    assert not whole(zarr_dali.Loader(latest, ["a"], device="cpu"))["a"].any()
    assert_reads(CPU, xr.open_zarr(session.store, consolidated=False), select={"time": slice("2010", "2011")})


def test_icechunk_sessions_that_cannot_be_read(repository, monkeypatch):
    session = repository.writable_session("main")
    zarr.open_group(session.store)["a"][0] = 5.0
    with pytest.raises(ValueError, match="changes that are not committed"):
        zarr_dali.Loader(session.store, ["a"], device="cpu")
    for content in (b"", b"\xc1", b"\x9a\x98", b"\x80", b"\x81\xa4type\xa7Storage", b"\xd9\xff"):
        other = SimpleNamespace(
            has_uncommitted_changes=False, snapshot_id="SNAP",
            _session=SimpleNamespace(as_bytes=lambda content=content: content),
        )  # fmt: skip
        with pytest.raises(ValueError, match=r'give its path or URL: "PATH\|icechunk:@SNAP"'):
            _icechunk_session.place_of(other, None)


def test_msgpack():
    """Against values that were encoded by hand from the specification."""
    for content, value in [
        (b"\x05", 5), (b"\xff", -1), (b"\xc0", None), (b"\xc3", True),
        (b"\xcd\x10\x00", 4096), (b"\xd0\x80", -128),
        (b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5), (b"\xa2ab", "ab"), (b"\xd9\x02ab", "ab"),
        (b"\xc4\x02ab", b"ab"), (b"\x92\x01\xa1x", [1, "x"]), (b"\xdc\x00\x01\xc2", [False]),
        (b"\x81\xa1a\x90", {"a": []}), (b"\xde\x00\x01\xa1a\x80", {"a": {}}),
    ]:  # fmt: skip
        assert _icechunk_session._parsed(content) == value


# --- xarray ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("group", [None, "inner/deep"])
@pytest.mark.gpu_where(lambda case: case["chunks"] is None and case["group"] is None)
def test_datasets(backend, folder, chunks, group):
    """All variables, some of them, one, renamed ones; decoded as xarray does it."""
    if chunks is not None:
        pytest.importorskip("dask")
    # Values that were looked at stay in memory, and are no array of the store any more.
    opened, seen = (
        xr.open_zarr(folder / "w.zarr", group=group, consolidated=False, chunks=chunks) for _ in range(2)
    )
    found = whole(zarr_dali.Loader(opened, device=device_of(backend), batch_size=4))
    assert list(found) == list(opened.data_vars) and sorted(found) == ["a", "b", "scaled"]
    for name, values in found.items():
        np.testing.assert_array_equal(values, seen[name].values)
        assert values.dtype == opened[name].dtype
    assert_reads(backend, opened, ("b", "a"))
    assert_reads(backend, opened[["a", "b"]], ("a", "b"), select={"lat": slice(3, 1)})
    assert list(whole(zarr_dali.Loader(opened[["b"]], device="cpu"))) == ["b"]
    assert list(whole(zarr_dali.Loader(opened["b"], device="cpu"))) == ["b"]
    renamed = opened[["a", "b"]].rename(a="t2m")
    found = whole(zarr_dali.Loader(renamed, device="cpu", return_index=True))
    assert list(found) == [*renamed.data_vars, "index"]
    np.testing.assert_array_equal(found["t2m"], VALUES)
    assert list(whole(zarr_dali.Loader(renamed, "t2m", device="cpu"))) == ["t2m"]
    stacked = whole(zarr_dali.Loader(renamed, device="cpu", stack=True))["data"]
    signs = [1 if name == "t2m" else -1 for name in renamed.data_vars]
    np.testing.assert_array_equal(stacked, np.stack([sign * VALUES for sign in signs], axis=1))
    raw = whole(zarr_dali.Loader(opened, ["scaled"], device="cpu", mask_and_scale=False))["scaled"]
    np.testing.assert_array_equal(raw, VALUES.astype("i2"))
    undecoded = xr.open_zarr(
        folder / "w.zarr", group=group, consolidated=False, chunks=chunks, decode_cf=False
    )
    np.testing.assert_array_equal(whole(zarr_dali.Loader(undecoded, ["scaled"], device="cpu"))["scaled"], raw)
    assert zarr_dali.select(opened[["a"]], time="2010-01-02")["arrays"] == ["a"]
    assert [report.name for report in zarr_dali.info(opened[["a"]], device="cpu").arrays] == ["a"]


def test_variables_that_are_not_asked_for_may_be_anything(folder):
    """Of a Dataset with others that were computed; by the names that it has for them."""
    opened = xr.open_zarr(folder / "w.zarr", consolidated=False, chunks=None)
    changed = opened.rename(a="t2m").assign(speed=lambda data: data["b"] * 2)
    # Reading b to compute with it has left it in memory.
    with pytest.raises(
        ValueError, match=r"the variable (b|speed) of the Dataset is not read from a Zarr store"
    ):
        zarr_dali.Loader(changed, device="cpu")
    with pytest.raises(ValueError, match="the variable speed of the Dataset is not read"):
        zarr_dali.Loader(changed, ["t2m", "speed"], device="cpu")
    for source in (changed, [changed]):
        found = whole(zarr_dali.Loader(source, "t2m", device="cpu", select={"lat": [1, 3]}))
        np.testing.assert_array_equal(found["t2m"], VALUES[:, [2, 0]])
    chosen = zarr_dali.select(changed, arrays="t2m", time="2010-01-02")
    assert chosen["arrays"] == ["a"] and chosen["roi_start"] == [4]
    assert [report.name for report in zarr_dali.info(changed, "t2m", device="cpu").arrays] == ["a"]
    assert zarr_dali.statistics(changed, "t2m")["a"]["count"] == VALUES.size


def test_joined_datasets(folder):
    opened, second = (
        xr.open_zarr(folder / name, consolidated=False, chunks=None)[["a"]] for name in ("w.zarr", "w2.zarr")
    )
    found = whole(zarr_dali.Loader([opened, second], device="cpu"))["a"]
    np.testing.assert_array_equal(found, np.concatenate([VALUES] * 2))
    with pytest.raises(ValueError, match=r"first Dataset has the arrays \['a'\], another \['b'\]"):
        zarr_dali.Loader(
            [opened, xr.open_zarr(folder / "w2.zarr", consolidated=False, chunks=None)[["b"]]], device="cpu"
        )


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize(
    "change, words",
    [
        (lambda data: data.isel(time=slice(2, 5)), "a of the Dataset was selected|computed"),
        (lambda data: data.sel(lat=slice(2, 1)), "(was selected from|computed).*choose with `select=`"),
        (lambda data: data.isel(lat=[1, 0, 2]), "was selected|computed"),
        (lambda data: data.isel(time=slice(None, None, -1)), "was selected|computed"),
        (lambda data: data.isel(time=0), "was selected|computed"),
        (lambda data: data.transpose("lat", "time", "lon"), "selected|shape|computed|not read from"),
        (lambda data: data + 1, "not read from a Zarr store|computed by dask"),
        (lambda data: data.load(), r"not read from a Zarr store \(ndarray\)"),
        (lambda data: xr.concat([data, data], "time"), "not read from|computed by dask, or joined"),
        (lambda data: data.assign(a=data.a * 2), "variable a of the Dataset"),
        (lambda data: data.astype("float64"), "variable a of the Dataset"),
        (lambda data: data[[]], "no data variables"),
        (
            lambda data: data.assign_coords(lat=data.lat[::-1].values),
            "other labels along lat than its store.*or the path of the store",
        ),
        (lambda data: data["a"].assign_coords(lat=data.lat[::-1].values), "other labels along lat than"),
        (lambda data: data.assign_coords(time=np.arange(data.sizes["time"])), "other labels along time than"),
        (lambda data: data.assign_coords(lon=np.arange(data.sizes["lon"]) + 9.5), "other labels along lon"),
        (lambda data: data.assign_coords(z=("lat", data.lat.values + 1)).swap_dims(lat="z"), "along z than"),
        (lambda data: data.rename(lat="z").assign_coords(z=data.lat.values + 1), "other labels along z than"),
    ],
)
def test_datasets_that_were_changed_are_refused(folder, chunks, change, words):
    """Rather than to read something else than what the Dataset shows."""
    if chunks is not None:
        pytest.importorskip("dask")
    opened = xr.open_zarr(folder / "w.zarr", consolidated=False, chunks=chunks)[["a", "b"]]
    with pytest.raises(ValueError, match=words):
        zarr_dali.Loader(change(opened), device="cpu")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.rename(lat="z"),
        lambda data: data.rename_dims(lat="z"),
        lambda data: data.drop_vars("lat"),
        lambda data: data.drop_indexes("lat"),
        lambda data: data.assign_coords(lat=data.lat.values.astype("float64"), more=("more", [1, 2])),
        lambda data: data.assign_coords(run=3),
    ],
)
@pytest.mark.parametrize(
    "decoded",
    [
        {},
        {"decode_times": False},
        {"decode_cf": False},
        {"decode_times": xr.coders.CFDatetimeCoder(use_cftime=True)},
    ],
)
def test_datasets_with_the_labels_of_the_store_are_read(folder, change, decoded):
    """Whichever names and types these have."""
    pytest.importorskip("cftime")
    opened = xr.open_zarr(folder / "w.zarr", consolidated=False, chunks=None, **decoded)[["a"]]
    found = whole(zarr_dali.Loader(change(opened), device="cpu"))["a"]
    np.testing.assert_array_equal(found, VALUES)


# --- what stands for nothing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: None, "NoneType stands for no store"),
        (lambda: 3, "int stands for no store"),
        (lambda: {"a": 1}, "dict stands for no store.*give a path or URL"),
        (lambda: np.zeros(3), "numpy.ndarray stands for no store"),
        (lambda: zarr.storage.MemoryStore(), "a store in memory cannot be read.*write it to a folder"),
        (lambda: zarr.group(zarr.storage.MemoryStore()), "a store in memory"),
        (lambda: xr.DataTree(), "a DataTree has many groups, give the path of one"),
        (lambda: torch.zeros(3), "torch.Tensor stands for no store"),
    ],
)
def test_what_is_no_store(make, words):
    for use in (
        lambda: zarr_dali.Loader(make(), ["a"], device="cpu"),
        lambda: zarr_dali.select(make(), arrays=["a"]),
        lambda: zarr_dali.info(make(), ["a"]),
    ):
        with pytest.raises(TypeError, match=words):
            use()


def test_repositories_of_icechunk(tmp_path):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    with pytest.raises(TypeError, match=r'Repository of Icechunk.*readonly_session\("main"\)'):
        zarr_dali.info(repository)


def test_paths_that_are_found_one_by_one(tmp_path):
    """As `Path.glob` finds them."""
    for name in "ab":
        zarr.create_array(str(tmp_path / f"{name}.zarr"), data=np.arange(3.0))
    loader = zarr_dali.Loader(tmp_path.glob("*.zarr"), batch_size=6, device="cpu")
    assert next(iter(loader))["data"].tolist() == [0, 1, 2, 0, 1, 2]


def test_file_systems_of_other_kinds():
    fsspec = pytest.importorskip("fsspec")
    with pytest.raises(TypeError, match="a file system of type MemoryFileSystem is not read"):
        zarr_dali.Loader(fsspec.get_mapper("memory://x"), ["a"], device="cpu")
