"""`rechunk` under kills, races, changing sources and full disks: what stands under the destination's name."""

import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from forked import start_script
from stores import FORMATS, chunk_files, read_array, write_array, write_group

if 3 not in FORMATS:
    pytest.skip("rechunk needs zarr-python 3", allow_module_level=True)

import zarr

from zarr_dali._rechunk import copying, journal, publishing, reading, rechunk, stamps
from zarr_dali._rechunk.lock import Lock
from zarr_dali._rechunk_cli import rechunk as command

pytestmark = pytest.mark.usefixtures("small_regions")

ARGUMENTS = {"chunks": {"dim_0": 1}, "shards": {"dim_0": 4}, "codec": "zstd", "workers": 2}
FLAGS = [{}, {"overwrite": True}, {"resume": True}, {"resume": True, "overwrite": True}]
NAMES = ("t", "u")


def random(seed):
    return np.random.default_rng(seed).normal(size=(24, 4, 5)).astype("float32")


def write(folder, seed, zarr_format=3, shards=None):
    write_group(folder, zarr_format=zarr_format)
    for number, name in enumerate(NAMES):
        write_array(
            folder, name, random(seed + number), chunks=(2, 4, 5), zarr_format=zarr_format, shards=shards
        )
    return folder


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "source.zarr", 0)


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy.zarr"


def assert_copied(copy, source):
    for name in NAMES:
        assert np.array_equal(read_array(copy, name), read_array(source, name))
    assert not copying.partial_of(copy).exists()


def content(folder):
    """Bytes of all files."""
    return {str(file): file.read_bytes() for file in sorted(Path(folder).rglob("*")) if file.is_file()}


def at(share, work):
    """A progress function that does something when a share of the copy is done, once."""
    done = []

    def tick(what, finished, total):
        if what == "copying" and finished >= share * total and not done:
            done.append(True)
            work()

    return tick


def stop():
    raise KeyboardInterrupt


def interrupted(source, copy, share=0.5, **arguments):
    with pytest.raises(KeyboardInterrupt):
        rechunk(source, copy, progress=at(share, stop), **(ARGUMENTS | arguments))
    assert copying.partial_of(copy).exists()


def store_of(copy):
    (store,) = copying.partial_of(copy).glob("store-*")
    return store


# --- the lock -------------------------------------------------------------------------------------

WAITING = """
    import sys, time
    from pathlib import Path
    from zarr_dali._rechunk import rechunk
    def wait(what, done, total):
        Path(sys.argv[3] + ".begun").touch()
        while done and not Path(sys.argv[3]).exists():
            time.sleep(0.002)
    rechunk(sys.argv[1], sys.argv[2], chunks={"dim_0": 1}, progress=wait)
"""


def test_a_second_run_is_refused_at_once_and_harms_nothing(tmp_path, source, copy):
    go = tmp_path / "go"
    with start_script(WAITING, source, copy, go) as first:
        while not Path(f"{go}.begun").exists() and first.poll() is None:
            time.sleep(0.002)
        for flags in FLAGS:
            with pytest.raises(
                ValueError, match=rf"{copy}: another process .*\(process {first.pid} on .*wait"
            ):
                rechunk(source, copy, codec="none", **flags)
        assert store_of(copy).exists()
        go.touch()
        assert first.wait() == 0, first.communicate()
    assert_copied(copy, source)
    assert zarr.open_array(str(copy / "t"), mode="r").chunks == (1, 4, 5)


def test_a_lock_on_a_file_that_was_removed_is_none(tmp_path, copy, monkeypatch):
    """The run that had the folder ends between opening its journal and locking it."""
    partial, flock, ended = copying.partial_of(copy), fcntl.flock, []

    def late(descriptor, operation):
        if not ended:
            ended.append(True)
            shutil.rmtree(partial)
            partial.mkdir()
            (partial / journal.NAME).touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    lock = Lock(partial, copy, journal.holder)
    assert lock.held() and len(ended) == 1
    with pytest.raises(ValueError, match="another process"):
        Lock(partial, copy, journal.holder)
    lock.release(None)
    assert not list(tmp_path.iterdir())


def test_forked_children_do_not_keep_the_lock(tmp_path, copy):
    partial = copying.partial_of(copy)
    lock = Lock(partial, copy, journal.holder)
    os.write(lock.descriptor, b"what is to be resumed")
    forked = os.dup(lock.descriptor)
    lock.release(None)
    Lock(partial, copy, journal.holder).release(None)
    os.close(forked)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_systems_without_locks_are_refused(tmp_path, source, copy, monkeypatch, number):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RuntimeError, match=r"copy.zarr.partial: its file system cannot lock files.*NFS"):
        rechunk(source, copy)


@pytest.mark.parametrize("left", ["nothing", "a copy of it"])
def test_a_working_folder_that_goes_away_is_noticed(source, copy, left):
    partial, away = copying.partial_of(copy), copy.with_name("away")

    def remove():
        partial.rename(away)
        if left != "nothing":
            shutil.copytree(away, partial)

    with pytest.raises(RuntimeError, match=r"copy.zarr.partial was removed or replaced.*begin anew"):
        rechunk(source, copy, progress=at(0.5, remove), **ARGUMENTS)
    assert not copy.exists()
    rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert_copied(copy, source)


# --- what is in the way ---------------------------------------------------------------------------


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_working_folders_of_others_are_left_alone(tmp_path, source, copy, flags):
    partial = copying.partial_of(copy)
    partial.write_text("a file")
    with pytest.raises(ValueError, match=r"copy.zarr.partial is in the way and none of ours.*remove"):
        rechunk(source, copy, **flags)
    assert partial.read_text() == "a file"
    partial.unlink()
    write(partial, 5)  # a Zarr store, but none that a run has begun
    before = content(partial)
    with pytest.raises(ValueError, match=r"copy.zarr.partial is in the way and none of ours.*remove"):
        rechunk(source, copy, **flags)
    (partial / journal.NAME).write_text("no journal")
    (partial / "obsolete").mkdir()
    (partial / "obsolete" / "precious").write_text("mine")
    with pytest.raises(ValueError, match=r"none of ours.*move"):
        rechunk(source, copy, **flags)
    for name in NAMES:
        (partial / name).rename(partial.with_name(name))
    (partial / "zarr.json").rename(partial.with_name("zarr.json"))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"journal that cannot be read.*move it away"):
            rechunk(source, copy, **flags)
        if (partial / "obsolete").exists():
            assert (partial / "obsolete" / "precious").read_text() == "mine"
            shutil.rmtree(partial / "obsolete")
    assert (partial / journal.NAME).read_text() == "no journal"
    for name in (*NAMES, "zarr.json"):
        partial.with_name(name).rename(partial / name)
    (partial / journal.NAME).unlink()
    assert content(partial) == before and not copy.exists()
    with pytest.raises(ValueError, match="is to be written"):
        rechunk(partial, copy, **flags)
    assert content(partial) == before


def test_files_of_others_in_a_working_folder_are_left_alone(source, copy):
    interrupted(source, copy)
    notes = copying.partial_of(copy) / "notes"
    notes.write_text("mine")
    for flags in FLAGS[1:]:
        with pytest.raises(ValueError, match=r"copy.zarr.partial/notes is in the way.*move it away"):
            rechunk(source, copy, **ARGUMENTS, **flags)
    notes.unlink()
    rechunk(source, copy, resume=True, **ARGUMENTS)
    assert_copied(copy, source)


FILES_OF_OTHERS = (
    "thesis.tex",
    "photos/one.jpg",
    "t/c.txt",
    ".ssh/id",
    "t/c/notes.txt",
    "t/2024/photo.jpg",
    "t/c/77/notes.txt",
    "._kept/notes",
    ".ncattr",
)
FILES_OF_STORES = (
    ".DS_Store",
    "t/c/._0",
    "t/.nfs0001",
    "Thumbs.db",
    ".nczarr",
    ".nczgroup",
    "t/.nczvar",
    ".nczattr",
)


def test_only_stores_are_replaced(tmp_path, source, copy):
    """Also a folder with metadata is none when it holds more, as a home folder may."""
    home = write(tmp_path / "home", 5)
    for name in FILES_OF_OTHERS:
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("mine")
        before = content(home)
        with pytest.raises(ValueError, match=rf"home/{name} is no part of a Zarr store"):
            rechunk(source, home, overwrite=True)
        assert content(home) == before
        (home / name).unlink()
    for name in FILES_OF_OTHERS[:5]:
        (home / name).write_text("mine")
    with pytest.raises(ValueError, match=r"home/\S+ and \S+home/\S+ and \S+home/\S+ is no part of a Zarr"):
        rechunk(source, home, overwrite=True)
    for name in FILES_OF_OTHERS[:5]:
        (home / name).unlink()
    for folder in (".ssh", "._kept", "t/2024", "t/c/77"):
        (home / folder).rmdir()
    (home / "link").symlink_to(tmp_path)
    for name in FILES_OF_STORES:
        (home / name).write_text("")
    rechunk(source, home, overwrite=True)
    assert_copied(home, source)
    interrupted(source, copy)
    with pytest.raises(ValueError, match="is no Zarr store"):
        rechunk(source, copying.partial_of(copy), overwrite=True)


def test_a_file_that_comes_into_a_store_while_it_is_copied(source, copy):
    write(copy, 5)
    with pytest.raises(ValueError, match=r"thesis.tex is no part"):
        rechunk(
            source,
            copy,
            overwrite=True,
            progress=at(1, lambda: (copy / "thesis.tex").write_text("years of work")),
            **ARGUMENTS,
        )
    assert (copy / "thesis.tex").exists()
    (copy / "thesis.tex").unlink()
    rechunk(source, copy, overwrite=True, resume=True, **ARGUMENTS)
    assert_copied(copy, source)


def test_a_store_that_comes_into_being_while_it_is_copied(source, copy):
    with pytest.raises(ValueError, match=r"came into being while it was copied"):
        rechunk(source, copy, progress=at(1, lambda: write(copy, 5)), **ARGUMENTS)
    assert np.array_equal(read_array(copy, "t"), random(5))


@pytest.mark.parametrize("version", [1, journal.VERSION + 1])
def test_what_another_release_left(source, copy, version):
    partial = copying.partial_of(copy)
    write(partial / "store-0123456789ab", 5)
    (partial / journal.NAME).write_bytes(journal.line({"fingerprint": "", "regions": {}, "version": version}))
    (partial / "notes").write_text("mine")
    for flags in FLAGS:
        with pytest.raises(ValueError, match=r"copy.zarr.partial/notes is in the way.*move it away"):
            rechunk(source, copy, **ARGUMENTS, **flags)
    (partial / "notes").unlink()
    (partial / ".DS_Store").touch()
    with pytest.raises(ValueError, match=r"another release.*overwrite=True begins anew"):
        rechunk(source, copy, resume=True, **ARGUMENTS)
    rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert os.listdir(partial) == [".DS_Store"]
    rechunk(source, copy, overwrite=True, **ARGUMENTS)
    shutil.rmtree(partial)
    assert_copied(copy, source)


def test_paths_that_would_destroy_what_is_read_or_written(source, copy):
    interrupted(source, copy)
    with pytest.raises(ValueError, match="is to be written"):
        rechunk(store_of(copy), copy, overwrite=True)
    write(copy, 5)
    with pytest.raises(ValueError, match="inside the copy"):
        rechunk(source, copy, overwrite=True, stats=copy / "stats.json")


# --- publishing -----------------------------------------------------------------------------------

DAMAGE = {
    "metadata gone": (lambda store: (store / "t" / "zarr.json").unlink(), "t/zarr.json is missing"),
    "metadata": (lambda store: (store / "zarr.json").write_text("{}"), "zarr.json is not what was written"),
    "chunk gone": (lambda store: chunk_files(store / "t" / "c" / "0")[0].unlink(), 'array "t", .* somebody'),
    "chunk cut": (lambda store: os.truncate(chunk_files(store / "u")[0], 9), 'array "u", .* somebody'),
    "file more": (lambda store: (store / "t" / "c" / "99").write_text(""), "files where .* were written"),
    "store gone": (lambda store: shutil.rmtree(store), "somebody"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_only_what_was_written_is_published(source, copy, damage):
    """A store was published without its metadata after another run had removed them."""
    work, text = DAMAGE[damage]
    stats = source.with_name("stats.json")
    with pytest.raises(RuntimeError, match=text):
        rechunk(source, copy, progress=at(1, lambda: work(store_of(copy))), stats=stats, **ARGUMENTS)
    assert not copy.exists() and not stats.exists()
    if "file more" not in damage:
        rechunk(source, copy, resume=True, **ARGUMENTS)
        assert_copied(copy, source)


def without_exchange(monkeypatch):
    monkeypatch.setattr(publishing, "exchange", lambda one, other: False)


@pytest.mark.parametrize("exchange", [True, False])
def test_an_old_store_is_there_until_the_new_one_is(source, copy, monkeypatch, exchange):
    if not exchange:
        without_exchange(monkeypatch)
    write(copy, 5)
    seen = []
    remove = Lock.remove

    def looking(self, name):
        if os.path.lexists(self.folder / name):
            seen.append((name, np.array_equal(read_array(copy, "t"), random(0))))
        remove(self, name)

    monkeypatch.setattr(Lock, "remove", looking)
    rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert seen == [(publishing.OBSOLETE, True)]
    assert_copied(copy, source)


def test_exchange_is_one_step(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    if not publishing.exchange(one, other):
        pytest.skip("this file system cannot exchange names")
    assert [(folder / "name").read_text() for folder in (one, other)] == ["other", "one"]
    with pytest.raises(FileNotFoundError):
        publishing.exchange(one, tmp_path / "none")


def killed_between_renames(source, copy, monkeypatch):
    with monkeypatch.context() as patch:
        without_exchange(patch)
        rename, dead = os.rename, []

        def killed(one, other):
            if not dead:
                rename(one, other)
            if dead or Path(other).name == publishing.REPLACED:
                dead.append(True)
                raise KeyboardInterrupt

        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert not copy.exists()


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize(
    "journal_is", ["torn in its last line", "torn in its first line", "of another release"]
)
def test_an_old_store_is_put_back_whatever_the_journal_says(source, copy, monkeypatch, flags, journal_is):
    write(copy, 5)
    before = content(copy)
    killed_between_renames(source, copy, monkeypatch)
    path = copying.partial_of(copy) / journal.NAME
    text = path.read_bytes()
    if journal_is == "of another release":
        monkeypatch.setattr(journal, "VERSION", journal.VERSION + 1)
    else:
        path.write_bytes(text[:-9] if "last" in journal_is else text[9:])
    error = None
    try:
        rechunk(source, copy, progress=lambda *now: stop(), **ARGUMENTS, **flags)
    except (ValueError, KeyboardInterrupt) as caught:
        error = caught
    assert content(copy) == before, error
    assert not (copying.partial_of(copy) / publishing.REPLACED).exists()
    if "first" in journal_is:
        assert re.search("journal that cannot be read.*move it away", str(error))


def test_two_stores_for_one_name_are_left_alone(source, copy, monkeypatch):
    """Killed between two renames, and then somebody has written another store."""
    write(copy, 5)
    killed_between_renames(source, copy, monkeypatch)
    write(copy, 7)
    path = copying.partial_of(copy) / journal.NAME
    text = path.read_bytes()
    for torn in (text, text[:-9], text[9:]):
        path.write_bytes(torn)
        for flags in FLAGS:
            with pytest.raises(ValueError, match="move one of them away"):
                rechunk(source, copy, **ARGUMENTS, **flags)
    assert np.array_equal(read_array(copy, "t"), random(7))
    assert np.array_equal(read_array(path.with_name(publishing.REPLACED), "t"), random(5))


def test_ctrl_c_between_two_renames_puts_the_old_store_back(source, copy, monkeypatch):
    write(copy, 5)
    before = content(copy)
    without_exchange(monkeypatch)
    rename = os.rename

    def interrupting(name):
        def interrupted(one, other):
            rename(one, other)
            if Path(other).name == name:
                raise KeyboardInterrupt

        return interrupted

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", interrupting(publishing.REPLACED))
        rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert content(copy) == before
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", interrupting(copy.name))
        rechunk(source, copy, overwrite=True, resume=True, **ARGUMENTS)
    assert np.array_equal(read_array(copy, "t"), random(0))
    assert rechunk(source, copy, resume=True, **ARGUMENTS).complete
    assert_copied(copy, source)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_the_next_run_repairs_what_a_kill_between_two_renames_left(source, copy, monkeypatch, flags):
    write(copy, 5)
    before = content(copy)
    killed_between_renames(source, copy, monkeypatch)
    assert np.array_equal(read_array(store_of(copy), "t"), random(0))
    if flags.get("overwrite"):
        rechunk(source, copy, **ARGUMENTS, **flags)
        assert_copied(copy, source)
    else:
        with pytest.raises(ValueError, match="overwrite=True"):
            rechunk(source, copy, **ARGUMENTS, **flags)
        assert content(copy) == before


def test_the_old_store_is_put_back_where_the_new_one_cannot_be_renamed(source, copy, monkeypatch):
    write(copy, 5)
    before = content(copy)
    without_exchange(monkeypatch)
    rename = os.rename

    def failing(one, other):
        if Path(one).name.startswith("store-"):
            raise OSError(errno.EIO, "Input/output error")
        rename(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with pytest.raises(RuntimeError, match=r"copy.zarr.*could not be given its name.*resume=True"):
            rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert content(copy) == before
    rechunk(source, copy, overwrite=True, resume=True, **ARGUMENTS)
    assert_copied(copy, source)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_the_next_run_cleans_up_after_a_kill_behind_the_exchange(source, copy, monkeypatch, flags):
    write(copy, 5)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "tidy", lambda lock, log: stop())
        with pytest.raises(KeyboardInterrupt):
            rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert copying.partial_of(copy).exists()
    if flags:
        assert rechunk(source, copy, **ARGUMENTS, **flags).complete == flags.get("resume", False)
    else:
        with pytest.raises(ValueError, match=r"copy.zarr exists"):
            rechunk(source, copy, **ARGUMENTS)
    assert_copied(copy, source)


def test_an_old_store_never_passes_for_the_new_one(source, copy, monkeypatch):
    """Killed behind the exchange, then somebody moves the new store away: what is left is the old one."""
    rechunk(write(source.with_name("older.zarr"), 5), copy, codec="none")
    before = content(copy)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "tidy", lambda lock, log: stop())
        with pytest.raises(KeyboardInterrupt):
            rechunk(source, copy, overwrite=True, codec="none")
    copy.rename(copy.with_name("moved.zarr"))
    copy.mkdir()
    with pytest.raises(ValueError, match="move one of them away"):
        rechunk(source, copy, resume=True, codec="none")
    copy.rmdir()
    with pytest.raises(ValueError, match="overwrite=True"):
        rechunk(source, copy, resume=True, codec="none")
    assert content(copy) == before


def test_a_kill_while_an_earlier_copy_is_deleted(source, copy, monkeypatch):
    """Half of a copy that was about to get its name must not pass for the store that it was to replace."""
    write(copy, 5)
    before = content(copy)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(publishing, "exchange", lambda one, other: stop())
        rechunk(source, copy, overwrite=True, **ARGUMENTS)

    def killed(folder):
        next(Path(folder).rglob(publishing.RECORD)).unlink()
        stop()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert content(copy) == before
    rechunk(source, copy, overwrite=True, **ARGUMENTS)
    assert_copied(copy, source)


def test_half_a_copy_never_gets_the_name(source, copy, monkeypatch):
    """Killed before it got its name, while it was deleted, and while it was resumed."""
    publish = journal.Journal.publish

    def killed(log):
        publish(log)
        stop()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journal.Journal, "publish", killed)
        rechunk(source, copy, **ARGUMENTS)
    shutil.rmtree(store_of(copy))
    interrupted(source, copy, resume=True)
    with pytest.raises(ValueError, match="is left of an earlier run"):
        rechunk(source, copy, **ARGUMENTS)
    assert not copy.exists()
    rechunk(source, copy, resume=True, **ARGUMENTS)
    assert_copied(copy, source)


# --- a source that changes ------------------------------------------------------------------------

SOURCES = {"v2": {"zarr_format": 2}, "v3": {}, "sharded": {"shards": (4, 4, 5)}}


def change(source, name="t"):
    zarr.open_array(str(source / name), mode="r+")[0:6] = 7


@pytest.mark.parametrize("kind", SOURCES)
def test_chunks_that_changed_are_copied_again_on_resuming(tmp_path, copy, kind):
    source = write(tmp_path / "a.zarr", 0, **SOURCES[kind])
    interrupted(source, copy, 0.75)
    change(source)
    result = CliRunner().invoke(
        command,
        [
            *map(str, (source, copy)),
            "--chunks",
            "dim_0=1",
            "--shards",
            "dim_0=4",
            "--codec",
            "zstd",
            "--resume",
        ],
    )
    assert result.exit_code == 0, result.output
    assert "were copied again, because files had changed since" in result.output
    assert_copied(copy, source)


def test_chunks_that_did_not_change_are_not_copied_again(source, copy):
    interrupted(source, copy, 0.75)
    done = rechunk(source, copy, resume=True, **ARGUMENTS)
    assert done.again_bytes == 0 < done.resumed_bytes
    assert_copied(copy, source)


def test_chunks_that_are_to_be_copied_again_stay_so_after_a_kill(source, copy):
    """What the journal says about them must not become right again by chance."""
    interrupted(source, copy, 0.75)
    first = chunk_files(store_of(copy) / "t")[0]
    text, size = first.read_bytes(), first.stat().st_size
    first.unlink()
    with pytest.raises(KeyboardInterrupt):
        rechunk(source, copy, resume=True, progress=at(0, stop), **ARGUMENTS)
    first.write_bytes(b"x" * size)
    assert text != b"x" * size
    rechunk(source, copy, resume=True, **ARGUMENTS)
    assert_copied(copy, source)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_that_changes_while_it_is_copied(tmp_path, copy, kind):
    source = write(tmp_path / "a.zarr", 0, **SOURCES[kind])
    write(copy, 5)
    before = content(copy)
    with pytest.raises(RuntimeError, match=rf"{source}/t/\S+ has changed while .*resume=True copies again"):
        rechunk(source, copy, overwrite=True, progress=at(0.75, lambda: change(source)), **ARGUMENTS)
    assert content(copy) == before
    done = rechunk(source, copy, overwrite=True, resume=True, **ARGUMENTS)
    assert 0 < done.again_bytes < done.plan.bytes
    assert_copied(copy, source)


def test_chunks_that_come_and_go(source, copy):
    chunk = chunk_files(source / "t")[0]
    chunk.rename(source.with_name("chunk"))
    with pytest.raises(RuntimeError, match=rf"{chunk} has changed while"):
        rechunk(source, copy, progress=at(0.75, lambda: source.with_name("chunk").rename(chunk)), **ARGUMENTS)
    rechunk(source, copy, resume=True, **ARGUMENTS)
    assert_copied(copy, source)


def test_a_source_that_goes_away_while_it_is_copied(source, copy):
    """What is not there reads as the fill value."""
    away = source.with_name("away")
    with pytest.raises(RuntimeError, match=rf"{source}/\S+ went away.*resume=True"):
        rechunk(source, copy, progress=at(0.5, lambda: source.rename(away)), **ARGUMENTS)
    away.rename(source)
    rechunk(source, copy, resume=True, **ARGUMENTS)
    assert_copied(copy, source)


@pytest.mark.parametrize("what", ["store", "chunk"])
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("zarrs", [True, False])
def test_a_source_that_goes_away_and_comes_back_while_it_is_read(
    tmp_path, copy, monkeypatch, what, kind, zarrs
):
    """All stamps are the same as before, and what is not there reads as the fill value."""
    source = write(tmp_path / "a.zarr", 0, **SOURCES[kind])
    there = source if what == "store" else chunk_files(source / "t")[0]
    away, stamp, native, reads = tmp_path / "away", stamps.of, reading.native, []

    def stamped(*arguments, settled):
        found = stamp(*arguments, settled=settled)
        if settled and not reads:
            reads.append(there.rename(away))
        return found

    def read(values):
        if away.exists():
            away.rename(there)
        return native(values)

    with monkeypatch.context() as patch:
        patch.setattr(stamps, "of", stamped)
        patch.setattr(reading, "native", read)
        if not zarrs:
            patch.setattr(reading, "zarrs_takes", lambda array: False)
        with pytest.raises(RuntimeError, match=rf'array "t".*{source}/t/\S+ went away.*resume=True'):
            rechunk(source, copy, **(ARGUMENTS | {"workers": 1}))
    assert reads and there.exists() and not copy.exists()
    rechunk(source, copy, resume=True, **ARGUMENTS)
    assert_copied(copy, source)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("fill", [0, np.nan])
def test_chunks_of_nothing_but_the_fill_value(tmp_path, copy, kind, fill):
    """Some are there as files, some are not."""
    source = tmp_path / "a.zarr"
    write_group(source, zarr_format=SOURCES[kind].get("zarr_format", 3))
    values = np.where(np.arange(23)[:, None, None] // 4 % 2, np.float32(fill), random(0)[:23])
    for name in NAMES:
        write_array(source, name, values, chunks=(2, 4, 5), **({"zarr_format": 3} | SOURCES[kind]))
        array = zarr.open_array(str(source / name), mode="r+", config={"write_empty_chunks": True})
        array[4:8] = fill
    done = rechunk(source, copy, index_range={"dim_0": (1, 22)}, verify=True, **ARGUMENTS)
    assert set(done.checksums) == set(NAMES)
    assert np.array_equal(read_array(copy, "t"), values[1:22], equal_nan=True)


class Clock:
    """A clock that goes on only while somebody sleeps."""

    def __init__(self, now):
        self.now, self.slept = now, []

    def time_ns(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(round(seconds, 3))
        self.now += round(seconds * 1e9)


@pytest.mark.parametrize(
    ("changed", "age", "slept"),
    [
        (5_000_000_001, 0.03, [0.07]),
        (5_000_000_001, 0.1, []),
        (5_000_000_000, 0.4, [0.6]),
        (5_000_000_000, 1, []),
        (5_000_000_001, -59, [0.1]),
        (5_000_000_000, -59, [1]),
        (5_000_000_001, -61, []),
    ],
)
def test_stamps_settle_as_in_the_core(tmp_path, monkeypatch, changed, age, slept):
    clock = Clock(changed + round(age * 1e9))
    monkeypatch.setattr(stamps, "time", clock)
    monkeypatch.setattr(stamps, "_stamp", lambda folder, file: ("A" * stamps.LETTERS, changed))
    assert stamps.of(tmp_path, [tmp_path / "0"], settled=True) == "A" * stamps.LETTERS
    assert clock.slept == slept
    stamps.of(tmp_path, [tmp_path / "0"], settled=False)
    assert clock.slept == slept


def test_stamps_of_a_file_that_is_written_meanwhile(tmp_path, monkeypatch):
    clock = Clock(5_000_000_001)
    writes = iter([clock.now, clock.now + 50_000_000])

    def stamp(folder, file):
        changed = next(writes, 5_050_000_001)
        return str(changed)[-stamps.LETTERS :], changed

    monkeypatch.setattr(stamps, "time", clock)
    monkeypatch.setattr(stamps, "_stamp", stamp)
    assert stamps.of(tmp_path, [tmp_path / "0"], settled=True) == "50000001"
    assert clock.slept == [0.1, 0.05]


def test_metadata_that_change_while_a_source_is_copied(source, copy):
    def other():
        document = json.loads((source / "u" / "zarr.json").read_text())
        (source / "u" / "zarr.json").write_text(json.dumps(document | {"fill_value": 3.0}))

    with pytest.raises(RuntimeError, match=rf"{source}/u: the metadata have changed"):
        rechunk(source, copy, progress=at(0.5, other), **ARGUMENTS)
    assert not copy.exists()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("kind", ["link to nothing", "pipe", "folder"])
def test_chunks_that_are_no_files(source, copy, kind, begun):
    """A dangling link reads as a missing chunk, and a named pipe never ends."""
    chunk = chunk_files(source / "u")[0]

    def spoil():
        chunk.unlink()
        if kind == "pipe":
            os.mkfifo(chunk)
        elif kind == "folder":
            chunk.mkdir()
        else:
            chunk.symlink_to("gone")

    if not begun:
        spoil()
    words = rf"{chunk} is (a symbolic link to gone, where nothing is|.*, not a regular file)"
    # A folder may be part of a store, to those who do not know its chunks.
    error = RuntimeError if begun or kind == "folder" else ValueError
    with pytest.raises(error, match=words):
        rechunk(source, copy, progress=at(0.1, spoil) if begun else None, **ARGUMENTS)
    assert not copy.exists()


# --- resuming -------------------------------------------------------------------------------------


def test_resuming_what_is_complete(tmp_path, source, copy):
    arguments = ARGUMENTS | {"stats": tmp_path / "stats.json"}
    first = rechunk(source, copy, **arguments)
    stats = (tmp_path / "stats.json").read_text()
    (tmp_path / "stats.json").unlink()
    before = content(copy)
    done = rechunk(source, copy, resume=True, verify=True, **arguments)
    assert done.complete and not first.complete
    assert done.resumed_bytes == done.plan.bytes and done.statistics == first.statistics
    assert set(done.checksums) == set(NAMES) and (tmp_path / "stats.json").read_text() == stats
    assert content(copy) == before
    options = ["--chunks", "dim_0=1", "--shards", "dim_0=4", "--codec", "zstd", "--resume"]
    result = CliRunner().invoke(command, [str(source), str(copy), *options])
    assert result.exit_code == 0 and "copy.zarr is complete already" in result.output, result.output
    for other, text in [
        ({"codec": "none"}, "copy with other arguments.*overwrite=True"),
        ({"stats": True, "mask": True}, "without these statistics"),
    ]:
        with pytest.raises(ValueError, match=text):
            rechunk(source, copy, resume=True, **(ARGUMENTS | other))
    chunk = chunk_files(copy / "t" / "c")[0]
    text = chunk.read_bytes()
    chunk.write_bytes(text[:-1])
    with pytest.raises(ValueError, match='has been changed since it was written, in its array "t"'):
        rechunk(source, copy, resume=True, **ARGUMENTS)
    chunk.write_bytes(text)
    zarr.open_array(str(copy / "t"), mode="r+").attrs["mine"] = 1
    with pytest.raises(ValueError, match=r"has been changed since it was written \(.*t/zarr.json"):
        rechunk(source, copy, resume=True, **ARGUMENTS)
    rechunk(source, copy, resume=True, overwrite=True, **ARGUMENTS)
    change(source, "u")
    with pytest.raises(
        ValueError, match='size or times of files of the source have changed since, in its array "u"'
    ):
        rechunk(source, copy, resume=True, **ARGUMENTS)
    rechunk(source, copy, resume=True, overwrite=True, **ARGUMENTS)
    assert_copied(copy, source)


def test_halves_of_files_are_not_published(source, copy):
    interrupted(source, copy)
    half = store_of(copy) / "t" / "c" / f"0.{'0' * 32}.partial"
    half.write_bytes(b"half")
    rechunk(source, copy, resume=True, **ARGUMENTS)
    assert not list(copy.rglob("*.partial"))
    assert_copied(copy, source)


def test_statistics_after_a_run_without(source, copy):
    interrupted(source, copy, 0.3, stats=True)
    with pytest.raises(KeyboardInterrupt):
        rechunk(source, copy, resume=True, progress=at(0.6, stop), **ARGUMENTS)
    done = rechunk(source, copy, resume=True, stats=True, **ARGUMENTS)
    assert done.statistics["t"]["mean"] == pytest.approx(random(0).astype("float64").mean(), rel=1e-12)


@pytest.mark.parametrize("resume", [False, True])
def test_a_full_disk_for_the_journal(source, copy, monkeypatch, resume):
    """It was a bare errno on resuming. Half a line that was written is taken back."""
    if resume:
        interrupted(source, copy)
    path, left, put = copying.partial_of(copy) / journal.NAME, itertools.count(), os.write
    whole = path.read_bytes() if resume else b""

    def full(descriptor, text):
        if next(left) == 0:
            return put(descriptor, bytes(text[:7]))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        words = rf"{path}, the journal.*No space left.*make room.*stays in {path.parent}, resume=True goes on"
        with pytest.raises(RuntimeError, match=words):
            rechunk(source, copy, resume=resume, **ARGUMENTS)
    assert path.exists() == resume and (not resume or path.read_bytes() == whole)
    rechunk(source, copy, resume=resume, **ARGUMENTS)
    assert_copied(copy, source)


@pytest.mark.parametrize("what", ["metadata", "record", "statistics"])
def test_a_full_disk_for_anything_else(tmp_path, source, copy, monkeypatch, what):
    put = journal.write_whole
    names = {"metadata": "zarr.json", "record": publishing.RECORD, "statistics": "stats.json"}

    def full(path, text):
        if path.name == names[what]:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "write_whole", full)
        with pytest.raises(
            RuntimeError, match=r"resume=True writes.*No space.*make room|No.*make room.*resume=True"
        ):
            rechunk(source, copy, stats=tmp_path / "stats.json", **ARGUMENTS)
    # Statistics of a store that is not there would pass for those of the one that is.
    assert copy.exists() == (what == "statistics") and not (tmp_path / "stats.json").exists()
    rechunk(source, copy, stats=tmp_path / "stats.json", resume=True, **ARGUMENTS)
    assert (tmp_path / "stats.json").exists()
    assert_copied(copy, source)


def test_a_journal_that_is_torn_in_its_middle(source, copy):
    """What comes behind is copied again."""
    interrupted(source, copy, 0.75)
    path = copying.partial_of(copy) / journal.NAME
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:20] + b"".join(lines[5:]))
    done = rechunk(source, copy, resume=True, **ARGUMENTS)
    assert 0 < done.resumed_bytes < done.plan.bytes / 2
    assert_copied(copy, source)
    interrupted(source, copy, overwrite=True)
    path.write_bytes(path.read_bytes()[9:])
    for flags in FLAGS[1:]:
        with pytest.raises(ValueError, match=r"journal that cannot be read.*move it away"):
            rechunk(source, copy, **ARGUMENTS, **flags)


# --- kills and races ------------------------------------------------------------------------------


@pytest.mark.full
def test_kills_and_races():
    """A short run of `../rechunk_kills.py`, which begins with kills at each of the renames."""
    tool = Path(__file__).parents[1] / "rechunk_kills.py"
    options = ["--kills", "25", "--races", "8", "--seed", "3"]
    done = subprocess.run([sys.executable, tool, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong: 0" in done.stdout
    for trial in ("replaced | killed, destination is old", "renaming aside | killed, destination is absent"):
        assert trial in done.stdout
