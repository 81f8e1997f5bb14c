"""Files that are none, that may not be read, that are somewhere else, and paths, for `../hostile.py`."""

import os
import shutil
import socket
import stat

from cases import (
    VALUES,
    WITH_RECHUNK,
    Read,
    add,
    case,
    plain,
    read,
)
from stores import chunk_files, write_array, write_group

# --- files that are none --------------------------------------------------------------------------


def fifo(path):
    os.mkfifo(path, 0o666)


def socket_file(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has at most 108 bytes
    try:
        it = socket.socket(socket.AF_UNIX)
        it.bind(path.name)
        it.close()
    finally:
        os.chdir(here)


def device(path):
    """/dev/zero, which never ends; a link to it where devices cannot be made."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        path.symlink_to("/dev/zero")


def dangling(path):
    path.symlink_to(path.parent / "gone")


SPECIAL = {
    "fifo": fifo,
    "socket": socket_file,
    "device": device,
    "link-to-a-device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "dangling-link": dangling,
    "link-to-itself": lambda path: path.symlink_to(path.name),
    "link-to-a-fifo": lambda path: (fifo(path.parent / "real-fifo"), path.symlink_to("real-fifo")),
}


def _v3_chunk(folder):
    path = plain(folder)
    return path, chunk_files(path)[1], {}


def _v2_chunk(folder):
    path = plain(folder, codec="raw", zarr_format=2)
    return path, chunk_files(path)[1], {}


def _shard(folder):
    path = plain(folder, codec="sharded-end-zstd", shards=(4, 6))
    return path, chunk_files(path)[1], {}


def _metadata_v3(folder):
    path = plain(folder)
    return path, path / "zarr.json", {}


def _metadata_v2(folder):
    path = plain(folder, codec="raw", zarr_format=2)
    return path, path / ".zarray", {}


def _attributes(folder):
    path = plain(folder, codec="raw", zarr_format=2)
    return path, path / ".zattrs", {}


def _group(folder):
    """The metadata of the group; the array's own is good."""
    store = folder / "store.zarr"
    write_group(store)
    write_array(store, "a", VALUES, chunks=(2, 6))
    return store, store / "zarr.json", {"arrays": ["a"]}


def _consolidated(folder):
    store = folder / "store.zarr"
    write_group(store, 2)
    write_array(store, "a", VALUES, chunks=(2, 6), codec="raw", zarr_format=2)
    return store, store / ".zmetadata", {"arrays": ["a"]}


PLACES = {
    "chunk": (_v3_chunk, "error"),
    "v2-chunk": (_v2_chunk, "error"),
    "sharded-chunk": (_shard, "error"),
    "zarr.json": (_metadata_v3, "error"),
    "zarray": (_metadata_v2, "error"),
    # Without them an array is as good.
    "zattrs": (_attributes, "either"),
    "group": (_group, "either"),
    "zmetadata": (_consolidated, "either"),
}


def _special(place, make_it):
    def make(folder):
        path, file, arguments = place(folder)
        if file.exists():
            file.unlink()
        make_it(file)
        return read(path, VALUES, arguments=arguments)

    return make


for _place, (_find, _expect) in PLACES.items():
    for _name, _make in SPECIAL.items():
        _interfaces = WITH_RECHUNK
        if (_place, _name) in (("chunk", "fifo"), ("zarr.json", "fifo"), ("chunk", "folder")):
            _interfaces = (*WITH_RECHUNK, "loader")
        add(
            f"{_name}-as-{_place}",
            "no regular files",
            _special(_find, _make),
            _expect,
            interfaces=_interfaces,
        )


@case("no regular files", "error")
def fifo_as_the_store(folder):
    fifo(folder / "store.zarr")
    return read(folder / "store.zarr")


@case("no regular files", "error")
def fifo_as_the_folder_of_chunks(folder):
    path = plain(folder)
    shutil.rmtree(path / "c")
    fifo(path / "c")
    return read(path)


@case("no regular files", "error")
def file_as_the_folder_of_chunks(folder):
    path = plain(folder)
    shutil.rmtree(path / "c")
    (path / "c").write_text("no folder")
    return read(path)


@case("no regular files", "error")
def dangling_link_as_the_folder_of_chunks(folder):
    path = plain(folder)
    shutil.rmtree(path / "c")
    dangling(path / "c")
    return read(path)


@case("no regular files", "error")
def link_to_itself_as_the_store(folder):
    (folder / "store.zarr").symlink_to("store.zarr")
    return read(folder / "store.zarr")


@case("no regular files", "error")
def dangling_link_as_the_store(folder):
    dangling(folder / "store.zarr")
    return read(folder / "store.zarr")


# --- who may not read -----------------------------------------------------------------------------


def _forbidden(what, zarr_format=3):
    def make(folder):
        path = plain(folder, codec="raw", zarr_format=zarr_format)
        file = {
            "store": path,
            "metadata": path / ("zarr.json" if zarr_format == 3 else ".zarray"),
            "attributes": path / ".zattrs",
            "chunk": chunk_files(path)[1],
            "folder-of-chunks": path / "c",
        }
        if what == "parent":
            inner = folder / "closed"
            inner.mkdir()
            shutil.move(path, inner / "store.zarr")
            inner.chmod(0)
            return read(inner / "store.zarr")
        file[what].chmod(0)
        return read(path)

    return make


for _what in ("store", "parent", "metadata", "chunk", "folder-of-chunks"):
    add(
        f"forbidden-{_what}",
        "permissions",
        _forbidden(_what),
        "error",
        says="permission|not allowed|denied",
        interfaces=WITH_RECHUNK if _what == "chunk" else WITH_RECHUNK[:2],
        unprivileged=True,
    )
for _what in ("store", "metadata", "chunk", "attributes"):
    add(
        f"forbidden-v2-{_what}",
        "permissions",
        _forbidden(_what, 2),
        "error",
        says="permission|not allowed|denied",
        unprivileged=True,
    )


@case("permissions", "error", says="permission|not allowed|denied", unprivileged=True)
def forbidden_group(folder):
    store = folder / "store.zarr"
    write_group(store)
    write_array(store, "a", VALUES, chunks=(2, 6))
    (store / "a").chmod(0)
    return read(store, arguments={"arrays": ["a"]})


@case("permissions", "error", says="permission|not allowed|denied", unprivileged=True)
def forbidden_folder_of_a_pattern(folder):
    write_group(folder / "store.zarr")
    write_array(folder / "store.zarr", "y1", VALUES, chunks=(2, 6))
    (folder / "store.zarr").chmod(0)
    return Read(f"{folder}/store.zarr/y*", None)


# --- paths ----------------------------------------------------------------------------------------


def _path(path, **options):
    return lambda folder: Read(path, None, **options)


for _name, _url in {
    "without-bucket": "s3:///store.zarr",
    "pattern": "https://example.org/*/store.zarr",
    "signed": "s3://bucket/store.zarr?signature=1",
    "ftp": "ftp://example.org/store.zarr",
    "memory": "memory://store.zarr",
    "chain": "zip::s3://bucket/store.zarr.zip",
}.items():
    add(
        f"url-{_name}",
        "paths",
        _path(_url),
        "error",
        says="not read|not supported|URL|cannot be read|names no bucket|pattern|query",
        interfaces=WITH_RECHUNK,
    )
add(
    "url-file-of-another-host",
    "paths",
    _path("file://host/store.zarr"),
    "error",
    says="names a host|is a URL",
    interfaces=WITH_RECHUNK,
)
add(
    "url-s3-among-others",
    "paths",
    _path(["s3:///store.zarr", "/store.zarr"]),
    "error",
    says="URL|names no bucket",
)
for _name, _given in {
    "empty": "",
    "nothing-there": "/nowhere/store.zarr",
    "of-5000-letters": "/" + "store.zarr" * 500,
    "of-a-name-too-long": "/tmp/store.zarr" + "x" * 300,
    "none": [],
    "with-a-line-feed": "/nowhere/store.zarr\n",
    "root": "/",
    "device": "/dev/zero",
    "proc": "/proc/self",
    "bracket-open": "/nowhere/store.zarr[",
    "stars": "/nowhere/store.zarr" + "*" * 5000,
}.items():
    add(f"path-{_name}", "paths", _path(_given), "error", names=r"store\.zarr|path|/dev/zero|/proc")


@case("paths", "error", patience=1)
def pattern_that_tries_everything(folder):
    """20 names of 60 letters, and a pattern that fits none of them."""
    for i in range(20):
        (folder / "store.zarr" / ("a" * 60 + str(i))).mkdir(parents=True)
    return Read(f"{folder}/store.zarr/{'*a' * 12}*b", None)


@case("paths", "error")
def pattern_of_stars(folder):
    (folder / "store.zarr" / ("a" * 200)).mkdir(parents=True)
    return Read(f"{folder}/store.zarr/{'*' * 200}b", None)


@case("paths", "either")
def pattern_over_links_in_a_loop(folder):
    path = plain(folder)
    for name in "bcd":
        (folder / name).symlink_to(".")
    return Read(f"{folder}/*/*/*/*/*/{path.name}", None)


@case("paths", "error")
def path_of_a_file(folder):
    (folder / "store.zarr").write_bytes(b"PK\3\4")
    return read(folder / "store.zarr")


@case("paths", "error")
def path_of_an_empty_folder(folder):
    (folder / "store.zarr").mkdir()
    return read(folder / "store.zarr")


@case("paths", "error")
def path_of_a_folder_of_junk(folder):
    for i in range(3000):
        (folder / "store.zarr" / str(i)).mkdir(parents=True)
    return read(folder / "store.zarr", arguments={"arrays": ["a"]})


for _name in ("../outside", "/etc", "a/../../outside", "", "a//b", "./a", "a" * 10_000):

    def _array_named(folder, name=_name):
        write_group(folder / "store.zarr")
        write_array(folder / "store.zarr", "a", VALUES, chunks=(2, 6))
        return Read(str(folder / "store.zarr"), None, arguments={"arrays": [name]})

    add(f"array-named-{_name[:20]!r}", "paths", _array_named, "either")


# --- links that leave the store -------------------------------------------------------------------


def _leaving(what, leaves):
    def make(folder):
        made = CASES_OF_LINKS[what](folder, leaves)
        made.arguments = {"follow_links": False}
        return made

    return make


def _link_of_chunk(folder, leaves):
    path = plain(folder)
    target = folder / "secret" if leaves else path / "kept"
    for number, file in enumerate(chunk_files(path)):
        target.mkdir(exist_ok=True)
        shutil.move(file, target / str(number))
        file.symlink_to(os.path.relpath(target / str(number), file.parent))
    return read(path, VALUES)


def _link_of_folder(folder, leaves):
    path = plain(folder)
    target = folder / "secret" if leaves else path / "kept"
    shutil.move(path / "c", target)
    (path / "c").symlink_to(os.path.relpath(target, path))
    return read(path, VALUES)


def _link_of_metadata(folder, leaves):
    path = plain(folder)
    target = folder / "secret" if leaves else path / "kept"
    shutil.move(path / "zarr.json", target)
    (path / "zarr.json").symlink_to(target)
    return read(path, VALUES)


CASES_OF_LINKS = {"chunk": _link_of_chunk, "folder": _link_of_folder, "metadata": _link_of_metadata}
for _what in CASES_OF_LINKS:
    add(
        f"unfollowed-{_what}-that-leaves",
        "links",
        _leaving(_what, True),
        "error",
        says="link",
        interfaces=WITH_RECHUNK,
    )
    add(f"unfollowed-{_what}-inside", "links", _leaving(_what, False), "values", interfaces=WITH_RECHUNK)


@case("links", "values", interfaces=WITH_RECHUNK)
def unfollowed_plain(folder):
    return read(plain(folder), VALUES, arguments={"follow_links": False})


@case("links", "values")
def unfollowed_store_that_is_a_link(folder):
    """What the user names is the store, wherever it is."""
    path = plain(folder)
    os.rename(path, folder / "real")
    path.symlink_to("real")
    return read(path, VALUES, arguments={"follow_links": False})
