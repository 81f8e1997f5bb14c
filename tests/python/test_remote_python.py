"""What Python does with stores at URLs, through a store of zarr-python over the core: as with the folder."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import zarr

import zarr_dali
from forked import run_script
from range_server import serving, urls
from reading import CPU, read_all
from test_remote import CODECS, SHAPE, values, write, zipped
from test_select import TIMES, write_fields
from tiers import quick
from zarr_dali._core import Objects, expand
from zarr_dali._local import METADATA
from zarr_dali.cli import main

xr = pytest.importorskip("xarray")

SECRET = "s3cr3t"


@pytest.fixture
def bucket(tmp_path):
    (tmp_path / "bucket").mkdir()
    return tmp_path


@pytest.fixture
def fields(bucket):
    """The store of the tests of `select`, as `bucket/data.zarr`."""
    return write_fields(bucket / "bucket" / "data.zarr", TIMES)


# --- the store -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", quick(CODECS, "blosc", "sharded"))
def test_zarr_python_reads_the_bits_of_the_folder(bucket, rng, kind):
    data = values(rng)
    data[8:16] = -1
    write(bucket / "bucket" / "data.zarr", data, kind)
    zipped(bucket / "bucket" / "data.zarr", bucket / "bucket" / "data.zip")
    with serving(bucket) as server:
        stores = {**urls(server.url), "zip": (f"{server.url}/bucket/data.zip", {})}
        stores["local"] = str(bucket / "bucket" / "data.zip"), None
        stores["folder"] = bucket / "bucket" / "data.zarr", None
        for url, options in stores.values():
            store = zarr_dali.open_store(url, options)
            found = zarr.open_array(store, mode="r")
            assert found.store.read_only and not found.store.supports_writes
            np.testing.assert_array_equal(found[:], data)
            np.testing.assert_array_equal(found[7:19, 3:5], data[7:19, 3:5])


def test_parts_of_objects_are_those_that_zarr_python_asks_for(bucket):
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

    (bucket / "bucket" / "x").write_bytes(bytes(range(100)))
    with serving(bucket) as server:
        for kind, url in {name: url for name, (url, _) in urls(server.url).items()}.items():
            store = zarr_dali.open_store(url.rpartition("/")[0], urls(server.url)[kind][1])

            def read(part, store=store):
                return store.read("x", part).content

            assert read(None) == bytes(range(100))
            assert read(RangeByteRequest(10, 20)) == bytes(range(10, 20))
            assert read(RangeByteRequest(90, 120)) == bytes(range(90, 100))
            assert read(OffsetByteRequest(95)) == bytes(range(95, 100))
            assert read(SuffixByteRequest(7)) == bytes(range(93, 100))
            assert read(SuffixByteRequest(200)) == bytes(range(100))
            assert store.read("y") is None and store.read("y", SuffixByteRequest(7)) is None
            with pytest.raises(ValueError, match="no range"):
                read(RangeByteRequest(20, 20))
            with pytest.raises(RuntimeError):
                read(RangeByteRequest(200, 220))


def test_groups_are_listed_where_the_store_can_list(bucket, rng):
    group = zarr.create_group(bucket / "bucket" / "data.zarr")
    for name in ("a", "b", "in/c", "in/d", "in/e"):
        group.create_array(name, data=values(rng), chunks=(20, 24, 36))
    with serving(bucket, page=2) as server:
        for kind, (url, options) in urls(server.url).items():
            opened = zarr.open_group(zarr_dali.open_store(url, options), mode="r")
            if kind == "http":
                with pytest.raises(ValueError, match="listing"):
                    opened.members()
                with pytest.raises(ValueError, match=r"cannot be listed.*consolidate.*single arrays"):
                    zarr_dali.rechunk(url, bucket / "copy.zarr", storage_options=options)
                continue
            assert sorted(opened) == ["a", "b", "in"]
            assert sorted(opened["in"]) == ["c", "d", "e"]
    zarr.consolidate_metadata(bucket / "bucket" / "data.zarr")
    with serving(bucket) as server:
        opened = zarr.open_group(zarr_dali.open_store(f"{server.url}/bucket/data.zarr"), mode="r")
        assert sorted(opened["in"]) == ["c", "d", "e"]


def test_xarray_opens_it(bucket, fields):
    zarr.consolidate_metadata(fields)
    expected = xr.open_zarr(fields, chunks=None).load()
    with serving(bucket) as server:
        for url, options in urls(server.url).values():
            found = xr.open_zarr(zarr_dali.open_store(url, options), chunks=None)
            xr.testing.assert_identical(found.load(), expected)


def test_threads_and_pickled_copies_read_at_the_same_time(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "zstd")
    with serving(bucket, latency_s=0.005) as server:
        url, options = urls(server.url)["s3"]
        store = zarr_dali.open_store(url, options)
        copy = pickle.loads(pickle.dumps(store))
        assert copy == store and hash(copy) == hash(store)
        assert store != zarr_dali.open_store(url + "x", options)
        arrays = [zarr.open_array(one, mode="r") for one in (store, copy)]
        with ThreadPoolExecutor(8) as threads:
            found = threads.map(lambda number: arrays[number % 2][:], range(8))
            assert all(np.array_equal(one, data) for one in found)


@pytest.mark.full
def test_a_forked_child_opens_it_again(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "sharded")
    np.save(bucket / "data.npy", data)
    code = """
        import os, sys, threading
        import numpy as np
        import zarr
        import zarr_dali
        url, expected = sys.argv[1], np.load(sys.argv[2])
        array = zarr.open_array(zarr_dali.open_store(url), mode="r")
        reads = lambda: np.array_equal(array[:], expected)
        assert reads()
        # One that is busy while the process is forked.
        busy = threading.Thread(target=lambda: [reads() for _ in range(5)])
        busy.start()
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                os._exit(0 if reads() and reads() else 1)
            children.append(child)
        print([os.waitpid(child, 0)[1] for child in children], reads())
        busy.join()
    """
    with serving(bucket) as server:
        done = run_script(code, f"{server.url}/bucket/data.zarr", bucket / "data.npy")
    assert done.stdout.strip() == "[0, 0, 0] True", done.stdout + done.stderr


@pytest.mark.parametrize(
    "fault", ["403", "whole", *(pytest.param(fault, marks=pytest.mark.full) for fault in ("405", "500"))]
)
def test_what_is_not_absent_is_an_error_and_never_a_fill_value(bucket, rng, fault):
    write(bucket / "bucket" / "data.zarr", values(rng), "sharded")
    with serving(bucket, kinds=[fault], every=1) as server:
        url, options = urls(server.url)["http" if fault == "405" else "s3"]
        array = zarr.open_array(zarr_dali.open_store(url, options), mode="r")
        with pytest.raises(RuntimeError, match=r"data\.zarr/c/0/0/0"):
            array[:2]


def test_an_absent_chunk_is_one_that_is_not_there(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "raw")
    (bucket / "bucket" / "data.zarr" / "c/0/0/0").unlink()
    for absent in (404, 403):
        with serving(bucket, absent=absent) as server:
            url, options = urls(server.url)["s3"]
            array = zarr.open_array(zarr_dali.open_store(url, options), mode="r")
            np.testing.assert_array_equal(array[2:4], data[2:4])
            if absent == 404:
                assert (array[:2, :12] == -1).all()
            else:
                with pytest.raises(RuntimeError, match="permission"):
                    array[:2]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_without_the_permission_to_list_metadata_are_found(bucket, rng, zarr_format):
    group = zarr.create_group(bucket / "bucket" / "data.zarr", zarr_format=zarr_format)
    data = values(rng)
    group.create_array("a", data=data, chunks=(20, 24, 36), attributes={"one": 1})
    with serving(bucket, absent=403) as server:
        url, options = urls(server.url)["s3"]
        opened = zarr.open_group(zarr_dali.open_store(url, options), mode="r")
        np.testing.assert_array_equal(opened["a"][:], data)
        assert dict(opened["a"].attrs) == {"one": 1}
        with pytest.raises(RuntimeError, match="permission"):
            opened["b"]


def test_secrets_are_shown_nowhere(bucket, fields):
    with serving(bucket, key="RIGHT") as server:
        url, options = urls(server.url)["s3"]
        del options["anon"]
        right = options | {"key": "RIGHT", "secret": SECRET, "headers": {"x-token": SECRET}}
        store = zarr_dali.open_store(url, right)
        array = zarr.open_array(store, path="t", mode="r")
        texts = [
            repr(store),
            str(store),
            repr(store.objects),
            repr(array),
            repr(array.store_path),
            f"{array}",
        ]
        texts.append(repr(zarr_dali.info(url, storage_options=right)))
        chosen = zarr_dali.select(url, arrays=["t"], storage_options=right, time=TIMES[3])
        texts.append(repr(chosen))
        assert SECRET in chosen["storage_options"]
        for read in (
            lambda options: zarr.open_group(zarr_dali.open_store(url, options), mode="r"),
            lambda options: zarr_dali.select(url, arrays=["t"], storage_options=options, time=0),
            lambda options: zarr_dali.info(url, storage_options=options),
            lambda options: zarr_dali.rechunk(url, bucket / "copy.zarr", storage_options=options),
            lambda options: zarr_dali.statistics(url, storage_options=options),
        ):
            with pytest.raises((RuntimeError, ValueError), match=r"bucket/data\.zarr") as wrong:
                read(right | {"key": "WRONG"})
            with pytest.raises(ValueError, match="no option of S3") as unknown:
                read(right | {"sekret": SECRET})
            texts += [str(error) for caught in (wrong, unknown) for error in chain(caught.value)]
    with pytest.raises(ValueError, match="has a user") as caught:
        zarr_dali.open_store(f"https://user:{SECRET}@host/data.zarr?signature={SECRET}")
    texts.append(str(caught.value))
    with pytest.raises(ValueError) as caught:
        zarr_dali.select(f"s3://user:{SECRET}@bucket/*.zarr?signature={SECRET}", arrays=["a"])
    texts.append(str(caught.value))
    for text in texts:
        assert SECRET not in text


def chain(error):
    """An error and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "url, options, words",
    [
        ("s3://bucket/a.zarr", {"endpoint_url": "localhost:9000"}, r'endpoint "localhost:9000".*"http://'),
        ("s3://bucket/a.zarr", {"endpoint_url": ""}, 'endpoint "".*no URL'),
        ("gs://bucket/a.zarr", {"endpoint_url": "minio", "token": "anon"}, 'endpoint "minio"'),
        (
            "az://bucket/a.zarr",
            {"endpoint_url": "localhost:1", "account_name": "a"},
            'endpoint "localhost:1"',
        ),
        ("s3://bucket/a.zarr", {"key": "KEY", "secret": f"{SECRET}\n"}, "secret key.*end of a line"),
        ("s3://bucket/a.zarr", {"key": "KEY", "secret": SECRET, "region": "eu west"}, "region.*space"),
        ("s3://bu cket/a.zarr", {"anon": True}, "path.*bucket"),
        ("s3://bucket/a.zarr", {"retry_config": 3}, "retry_config.*no object"),
        ("s3://bucket/a.zarr", {"metadata_endpoint": SECRET}, "metadata endpoint.*no URL"),
        ("s3://bucket/a.zarr", {"container_credentials_relative_uri": f" {SECRET}"}, "relative URI.*no URL"),
        ("az://bucket/a.zarr", {"account_name": "a", "authority_host": SECRET}, "authority host.*no URL"),
        ("s3://bucket/a.zarr", {"skip_signature": SECRET}, '"aws_skip_signature".*neither true nor false'),
        ("s3://bucket/a.zarr", {"anon": SECRET}, '"anon" that is neither true nor false'),
        ("http://h/a.zarr", {"headers": {f"authorization: {SECRET}": "x"}}, 'header "authorization" that'),
        ("http://h/a.zarr", {"ftp://h": {"anon": True}}, 'options for "ftp://h"'),
        (f" http://h/a.zarr?sig={SECRET}", {}, '"http://h/a.zarr" has blanks around it'),
        (f"http:/h/a.zarr?sig={SECRET}", {}, 'one slash behind its scheme; give "http://h/a.zarr"'),
    ],
)
def test_options_of_which_no_request_can_be_made(url, options, words):
    """The client library would end in a panic, which is no message for who forgot "http://"."""
    for use in (zarr_dali.info, lambda *args, **given: zarr_dali.Loader(*args, ["a"], **given)):
        with pytest.raises(ValueError, match=words) as caught:
            use(url, device="cpu", storage_options=options)
        assert SECRET not in str(caught.value) and "internal error" not in str(caught.value)


def test_a_server_with_an_ipv6_address_is_no_pattern():
    retries = {"retry_config": {"max_retries": 0}}
    for path in ("http://[::1]:1/a.zarr", "http://[::1]:1/a[0].zarr"):
        with pytest.raises(ValueError, match=r"http://\[::1\]:1/a") as caught:
            zarr_dali.info(path, storage_options=retries)
        assert "bucket or host" not in str(caught.value)


def test_a_password_that_is_no_password_of_a_url_is_not_shown():
    for url in (f"http://user:pa/{SECRET}@127.0.0.1:1/a.zarr", f"http://host:{SECRET}/a.zarr"):
        with pytest.raises(ValueError, match=r"a\.zarr") as caught:
            zarr_dali.info(url, storage_options={"retry_config": {"max_retries": 0}})
        assert SECRET not in str(caught.value)


def test_unknown_urls_and_missing_stores_are_refused(bucket):
    with serving(bucket) as server:
        for url in ("ftp://host/x.zarr", "hdfs://host/x.zarr"):
            for use in (zarr_dali.select, lambda url: zarr_dali.rechunk(url, bucket / "copy.zarr")):
                with pytest.raises(ValueError, match="of a kind that is not read"):
                    use(url)
        with pytest.raises(ValueError, match=r"nothing\.zarr"):
            zarr_dali.select(f"{server.url}/bucket/nothing.zarr", arrays=["a"], time=0)


# --- select --------------------------------------------------------------------------------------


@pytest.mark.parametrize("zarr_format", [pytest.param(2, marks=pytest.mark.full), 3])
@pytest.mark.parametrize("consolidated", quick([True, False], True))
def test_labels_are_looked_up_as_in_the_folder(bucket, zarr_format, consolidated):
    folder = write_fields(bucket / "bucket" / "data.zarr", TIMES, zarr_format)
    if consolidated:
        zarr.consolidate_metadata(folder)
    labels = {"time": slice("2010-02-01", "2010-02-03"), "latitude": slice(45, -45), "offsets": ["-6h", 0]}
    asked = [({"arrays": ["t", "q"]}, {"time": labels["time"]}), ({"arrays": ["t"]}, labels)]
    with serving(bucket) as server:
        for url, options in urls(server.url).values():
            for which, given in asked:
                local = zarr_dali.select(folder, **which, **given)
                remote = zarr_dali.select(url, storage_options=options, **which, **given)
                assert {**remote, "path": local["path"]} == {
                    **local,
                    "storage_options": remote["storage_options"],
                }
            # An array by itself, with the coordinates of its group.
            local = zarr_dali.select(folder / "t", **labels)
            remote = zarr_dali.select(f"{url}/t", storage_options=options, **labels)
            assert (remote["roi_start"], remote["roi_end"]) == (local["roi_start"], local["roi_end"])
        listed = [request for request in server.requests() if request["method"] == "LIST"]
        assert not listed
        chunks = [request["path"] for request in server.requests() if "/t/" in request["path"]]
        assert {path.rpartition("/")[2] for path in chunks} <= {*METADATA}


def test_select_finds_the_group_of_an_array_wherever_it_is(bucket, fields):
    """Behind the query of a signed URL, in a zip file and in an Icechunk repository."""
    labels = {"time": slice("2010-02-01", "2010-02-03"), "latitude": slice(45, -45)}
    expected = zarr_dali.select(fields / "t", **labels)
    bounds = {name: expected[name] for name in ("roi_start", "roi_end")}
    zipped(fields, bucket / "bucket" / "data.zip", below="in/data.zarr/")
    with serving(bucket, query=f"sig={SECRET}") as server:
        url = f"{server.url}/bucket"
        for path in (
            f"{url}/data.zarr/t?sig={SECRET}",
            f"{url}/data.zip?sig={SECRET}|zip:in/data.zarr/t",
            f"{bucket}/bucket/data.zip|zip:in/data.zarr/t",
        ):
            found = zarr_dali.select(path, **labels)
            assert found["path"] == path and found == found | bounds
        signed = [f"{url}/data.zarr/{name}?sig={SECRET}" for name in ("t", "bare")]
        with pytest.raises(ValueError, match=r"the dimensions in .*/bare") as caught:
            zarr_dali.select(signed, time=0)
        assert SECRET not in str(caught.value)
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(bucket / "repo")))
    session = repository.writable_session("main")
    xr.open_zarr(fields, chunks=None).to_zarr(session.store, group="in", zarr_format=3, consolidated=False)
    session.commit("fields")
    for version in ("", "@branch.main/"):
        found = zarr_dali.select(f"{bucket}/repo|icechunk:{version}in/t", **labels)
        assert found == found | bounds


def test_consolidated_metadata_are_what_the_reader_takes(bucket, fields):
    """What came after them is not there for either."""
    zarr.consolidate_metadata(fields)
    array = zarr.open_array(fields / "time", mode="r+")
    array.resize(len(TIMES) + 1)
    with serving(bucket) as server:
        url = f"{server.url}/bucket/data.zarr"
        chosen = zarr_dali.select(url, arrays=["t"], time=slice(TIMES[3], None))
        assert (chosen["roi_start"], chosen["roi_end"]) == ([3], [len(TIMES)])
        requests = [request["path"] for request in server.requests() if request["path"].endswith("zarr.json")]
        assert set(requests) == {"/bucket/data.zarr/zarr.json"}


def test_what_is_selected_is_read(bucket, fields):
    with serving(bucket) as server:
        url, options = urls(server.url)["s3"]
        day = pd.Timestamp("2010-02-04")
        arguments = zarr_dali.select(url, arrays=["t"], time=slice(day, None), storage_options=options)
        (samples,) = read_all(CPU, **arguments)
        (expected,) = read_all(CPU, **zarr_dali.select(fields, arrays=["t"], time=slice(day, None)))
        np.testing.assert_array_equal(samples, expected)
        pytest.importorskip("torch")
        select = {"time": slice(day, None)}
        with zarr_dali.Loader(url, "t", 4, device="cpu", select=select, storage_options=options) as loader:
            found = np.concatenate([batch["t"].numpy() for batch in loader])
        np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("error")
def test_dimensions_without_coordinates_are_selected_by_position(bucket, fields):
    with serving(bucket) as server:
        for url, options in urls(server.url).values():
            chosen = zarr_dali.select(url, arrays=["bare"], step=slice(2, 5), storage_options=options)
            assert (chosen["roi_start"], chosen["roi_end"]) == ([2], [5])


def test_what_a_store_answers_is_an_error_of_the_arguments(bucket, fields):
    with serving(bucket, absent=403) as server:
        url, options = urls(server.url)["s3"]
        for path, arrays in ((url, ["nothing"]), (f"{url}/nothing", None)):
            with pytest.raises(ValueError, match="permission"):
                zarr_dali.select(path, arrays=arrays, time=0, storage_options=options)


def test_names_that_are_not_there_are_named(bucket, fields):
    with serving(bucket) as server:
        for url, options in urls(server.url).values():
            with pytest.raises(ValueError, match="no array nothing in"):
                zarr_dali.select(url, arrays=["nothing"], time=0, storage_options=options)
            with pytest.raises(ValueError, match="say which arrays"):
                zarr_dali.select(url, time=0, storage_options=options)


def test_coordinates_that_may_not_be_read_are_an_error(bucket, fields):
    """Positions are never taken in their place."""
    (fields / "time" / "zarr.json").unlink()
    with serving(bucket, absent=403) as server:
        url, options = urls(server.url)["s3"]
        with pytest.raises(ValueError, match="permission"):
            zarr_dali.select(url, arrays=["t"], time=3, storage_options=options)


# --- patterns ------------------------------------------------------------------------------------


def months(bucket):
    """Stores that follow one another in time, as runs/part-8 to part-10."""
    for number, part in enumerate(np.split(np.arange(len(TIMES)), 3)):
        write_fields(bucket / "bucket" / f"runs/part-{8 + number}.zarr", TIMES[part], values=part)
    (bucket / "bucket" / "runs" / "readme").write_text("no store")


@pytest.mark.full
def test_patterns_are_looked_up_where_the_store_can_list(bucket):
    months(bucket)
    local, _ = read_all_of(str(bucket / "bucket" / "runs" / "part-*.zarr"))
    with serving(bucket, page=2) as server:
        for kind, (url, options) in urls(server.url).items():
            for pattern in ("runs/part-*.zarr", "r*/part-[0-9]*.zarr", "*/[!q]*"):
                path = url.replace("data.zarr", pattern)
                if kind == "http":
                    for use in (
                        read_all_of,
                        lambda path, _: zarr_dali.info(path),
                        lambda path, _: select(path),
                    ):
                        with pytest.raises(ValueError, match="web servers have no listings; give a list"):
                            use(path, {})
                    continue
                found, paths = read_all_of(path, options)
                np.testing.assert_array_equal(found, local)
                assert [name.rpartition("/")[2] for name in paths] == [f"part-{n}.zarr" for n in (8, 9, 10)]
                chosen = select(path, options)
                assert chosen["path"] == path and (chosen["roi_start"], chosen["roi_end"]) == ([20], [56])
                assert zarr_dali.info(path, ["t"], storage_options=options).arrays[0].stores == 3
            if kind != "http":
                with pytest.raises(ValueError, match="no folder matches"):
                    read_all_of(url.replace("data.zarr", "runs/*/x"), options)


def select(path, options=None):
    return zarr_dali.select(path, arrays=["t"], time=slice(TIMES[20], TIMES[55]), storage_options=options)


def read_all_of(path, options=None):
    """Samples of `t`, and the stores that they come from."""
    more = {} if options is None else {"storage_options": json.dumps(options)}
    (samples,) = read_all(CPU, path, arrays=["t"], **more)
    return np.stack(samples), expand([str(path)], options)


def test_a_store_with_a_bracket_in_its_name_is_no_pattern(bucket, rng):
    data = values(rng)
    write(bucket / "bucket" / "data[1].zarr", data, "zstd")
    with serving(bucket, listing=403) as server:
        url, options = urls(server.url)["s3"]
        report = zarr_dali.info(url.replace("data", "data[1]"), storage_options=options)
        assert report.arrays[0].shape == SHAPE


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_listing_that_is_forbidden_is_named(bucket, kind):
    months(bucket)
    with serving(bucket, listing=403) as server:
        url, options = urls(server.url)[kind]
        path = url.replace("data.zarr", "runs/*.zarr")
        for use in (read_all_of, select):
            with pytest.raises(
                ValueError, match=r"is a pattern.*cannot be listed.*403.*give a list of the stores"
            ) as error:
                use(path, options)
            assert path in str(error.value) and url.replace("data.zarr", "runs") in str(error.value)


# --- info ----------------------------------------------------------------------------------------


def test_info_of_the_command_line_takes_options(bucket, rng):
    from click.testing import CliRunner

    write(bucket / "bucket" / "data.zarr", values(rng), "zstd")
    with serving(bucket) as server:
        url, options = urls(server.url)["s3"]
        arguments = ["info", url, "--json", "--device", "cpu", "--storage-options", json.dumps(options)]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["arrays"][0]["shape"] == list(SHAPE)
        arguments[-1] = f'{{"secret": {SECRET}'
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 1 and "storage_options" in done.output and SECRET not in done.output


# --- rechunk -------------------------------------------------------------------------------------

ARGUMENTS = {"chunks": {"dim_0": 4}, "shards": {"dim_0": 8}, "memory": "200kB", "workers": 2}


def tree(folder):
    """All files of a copy but its record, which names the source."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {
        str(file.relative_to(folder)): file.read_bytes() for file in files if file.name != ".zarr-dali-copy"
    }


@pytest.mark.parametrize(
    "kind", ["sharded", *(pytest.param(kind, marks=pytest.mark.full) for kind in CODECS if kind != "sharded")]
)
def test_a_copy_has_the_bits_of_one_of_the_folder(bucket, rng, kind):
    data = values(rng)
    data[8:16] = -1
    folder = bucket / "bucket" / "data.zarr"
    write(folder, data, kind)
    zipped(folder, bucket / "bucket" / "data.zip")
    local = zarr_dali.rechunk(folder, bucket / "local.zarr", verify=True, **ARGUMENTS)
    expected = tree(bucket / "local.zarr")
    with serving(bucket) as server:
        sources = urls(server.url)
        sources["zip"] = str(bucket / "bucket" / "data.zip"), None
        for name, (url, options) in sources.items():
            copy = bucket / f"{name}.zarr"
            done = zarr_dali.rechunk(url, copy, storage_options=options, verify=True, **ARGUMENTS)
            found = tree(copy)
            # The inner chunks of a sharded chunk are in the order in which they were encoded.
            assert found.keys() == expected.keys() and done.checksums == local.checksums
            assert found["zarr.json"] == expected["zarr.json"]
            np.testing.assert_array_equal(zarr.open_array(copy, mode="r")[:], data)
            again = zarr_dali.rechunk(url, copy, storage_options=options, resume=True, **ARGUMENTS)
            assert again.complete


def test_a_group_is_copied_by_its_consolidated_metadata(bucket, fields):
    zarr.consolidate_metadata(fields)
    arguments = {"chunks": {"time": 5}, "variables": ["t"], "stats": True}
    local = zarr_dali.rechunk(fields, bucket / "local.zarr", **arguments)
    with serving(bucket) as server:
        copied = zarr_dali.rechunk(f"{server.url}/bucket/data.zarr", bucket / "copy.zarr", **arguments)
    assert tree(bucket / "copy.zarr") == tree(bucket / "local.zarr")
    assert copied.statistics == local.statistics


class Stopped(Exception):
    """Raised where a test stops a copy."""


def stop_after(calls):
    """A tick that ends a copy after some regions."""
    left = iter(range(calls))

    def tick(what, done, total):
        if what == "copying" and next(left, None) is None:
            raise Stopped

    return tick


@pytest.mark.parametrize("kind", ["raw", "sharded"])
@pytest.mark.parametrize("tags", [True, False])
def test_a_stopped_copy_is_resumed_and_copies_again_what_has_changed(bucket, rng, kind, tags):
    import os

    data = values(rng)
    folder, copy = bucket / "bucket" / "data.zarr", bucket / "copy.zarr"
    write(folder, data, kind)
    changed, gone = ("c/0/0/0", "c/1/0/0") if kind == "sharded" else ("c/0/0/0", "c/1/1/0")
    with serving(bucket, tags=tags) as server:
        url, options = urls(server.url)["s3"]
        arguments = ARGUMENTS | {"workers": 1, "storage_options": options}
        with pytest.raises(Stopped):
            zarr_dali.rechunk(url, copy, progress=stop_after(4), **arguments)
        # Another object in the place of a chunk, with another time of modification, and one that went away.
        other = zarr.open_array(folder, mode="r+")
        other[0, 0, 0] = 7
        os.utime(folder / changed, (1, 1))
        (folder / gone).unlink()
        expected = zarr.open_array(folder, mode="r")[:]
        assert (expected == -1).any() and expected[0, 0, 0] == 7
        done = zarr_dali.rechunk(url, copy, resume=True, verify=True, **arguments)
        assert done.resumed_bytes > 0 and done.again_bytes > 0
    np.testing.assert_array_equal(zarr.open_array(copy, mode="r")[:], expected)


def test_a_source_that_changes_while_it_is_copied_gives_no_copy(bucket, rng):
    folder, copy = bucket / "bucket" / "data.zarr", bucket / "copy.zarr"
    write(folder, values(rng), "raw")
    with serving(bucket) as server:
        url, options = urls(server.url)["gs"]
        changes = iter([0])

        def change(what, done, total):
            if done and next(changes, None) is not None:
                zarr.open_array(folder, mode="r+")[0, 0, 0] = 7

        arguments = ARGUMENTS | {"storage_options": options}
        with pytest.raises(RuntimeError, match=f"{url}/c/0/0/0 has changed while the source was copied"):
            zarr_dali.rechunk(url, copy, progress=change, **arguments)
        assert not copy.exists()
        zarr_dali.rechunk(url, copy, resume=True, **arguments)
    assert zarr.open_array(copy, mode="r")[0, 0, 0] == 7


@pytest.mark.parametrize("fault", ["403", "whole"])
def test_a_copy_of_what_cannot_be_read_has_no_fill_values(bucket, rng, fault):
    write(bucket / "bucket" / "data.zarr", values(rng), "sharded")
    with serving(bucket, kinds=[fault], every=7) as server:
        url, options = urls(server.url)["s3"]
        with pytest.raises(RuntimeError, match=r"data\.zarr/c/.*resume=True"):
            zarr_dali.rechunk(url, bucket / "copy.zarr", storage_options=options, **ARGUMENTS)
    assert not (bucket / "copy.zarr").exists()


def test_several_stores_are_no_source(bucket):
    months(bucket)
    with serving(bucket) as server:
        url, options = urls(server.url)["s3"]
        with pytest.raises(ValueError, match="matches 3 stores"):
            zarr_dali.rechunk(
                url.replace("data.zarr", "runs/*"), bucket / "copy.zarr", storage_options=options
            )


def test_the_command_line_copies(bucket, rng):
    from click.testing import CliRunner

    data = values(rng)
    write(bucket / "bucket" / "data.zarr", data, "zstd")
    with serving(bucket) as server:
        url, options = urls(server.url)["s3"]
        arguments = [url, str(bucket / "copy.zarr"), "--storage-options", json.dumps(options), "--verify"]
        done = CliRunner().invoke(main, ["rechunk", *arguments])
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(zarr.open_array(bucket / "copy.zarr", mode="r")[:], data)


# --- bench ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["http", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("s3", "zip"))]
)
def test_a_store_is_measured_without_files(bucket, fields, monkeypatch, kind):
    from click.testing import CliRunner

    from zarr_dali._bench import ceilings

    monkeypatch.setattr(ceilings, "SECONDS", 0.2)
    zarr.consolidate_metadata(fields)
    zipped(fields, bucket / "data.zip")
    with serving(bucket) as server:
        stores = {**urls(server.url), "zip": (str(bucket / "data.zip"), {})}
        url, options = stores[kind]
        kept, options = bucket / "result.json", options | {"headers": {"x-token": SECRET}} if options else {}
        arguments = [url, "--arrays", "t", "--storage-options", json.dumps(options), "--output", str(kept)]
        quick = ["--rounds", "1", "--seconds", "0.01", "--device", "cpu"]
        # Workers of a DataLoader are forked while stores are open.
        for peer in ("zarr-python", "tensorstore", *(["dataloader"] if kind == "http" else [])):
            quick += ["--peer", peer]
        done = CliRunner().invoke(main, ["bench", *arguments, *quick])
    assert done.exit_code == 0, done.output
    result = json.loads(kept.read_text())
    assert SECRET not in kept.read_text() + done.output
    assert result["store"] == url and result["cold"] is None
    assert [note for note in result["notes"] if note.startswith("Cold was not measured")]
    assert not [note for note in result["notes"] if note.startswith("Values were not compared")]
    loaders = result["loaders"]
    assert "folders only" in loaders.pop("tensorstore")["problem"]
    assert len(loaders) == (3 if kind == "http" else 2)
    assert all(row["median_gb_per_s"] > 0 for row in loaders.values()), loaders
    (ceiling,) = result["ceilings"]
    assert ceiling["key"] == "store" and ceiling["gb_per_s"] > 0, ceiling
    seen = ceiling["store"]
    assert set(seen["rates"]) == {"16", "64", "256"} and max(seen["rates"].values()) == ceiling["gb_per_s"]
    assert seen["busy"] > 0 and 1 <= seen["threads"] <= 4 and seen["ms_to_first_byte"] > 0
    assert "Warm" not in result["verdict"] and result["work"]["stored_bytes"] > 0


def test_an_object_has_a_version(bucket):
    file = bucket / "bucket" / "x"
    file.write_bytes(b"one")
    with serving(bucket) as server:
        objects = Objects(f"{server.url}/bucket")
        head = objects.head("x")
        assert head.bytes == 3 and objects.get("x").head == head
        assert objects.get("x", suffix=1).content == b"e" and objects.head("y") is None
        file.write_bytes(b"two")
        assert objects.head("x") != head
