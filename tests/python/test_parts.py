"""`part` of `rechunk` and `statistics`: jobs of an array, side by side, killed and run again."""

import json
import os
import random
import re
import signal
import time

import numpy as np
import pytest
from click.testing import CliRunner

from forked import start_script
from stores import FORMATS, chunk_files, write_array, write_group

if 3 not in FORMATS:
    pytest.skip("rechunk needs zarr-python 3", allow_module_level=True)
import zarr

import zarr_dali
from tiers import quick
from zarr_dali import cli
from zarr_dali._rechunk import copying, fence, journal, lock, parts, publishing

pytestmark = pytest.mark.usefixtures("small_regions")

ARGUMENTS = {"chunks": {"dim_0": 1}, "shards": {"dim_0": 4}, "codec": "zstd", "workers": 2}


@pytest.fixture
def source(tmp_path, rng):
    folder = write_group(tmp_path / "source.zarr", zarr_format=3)
    values = rng.normal(size=(40, 6, 8)).astype("float32")
    values[8:14] = 0
    write_array(folder, "t", values, chunks=(2, 6, 8), codec="zstd")
    write_array(folder, "u", values + 1, chunks=(2, 3, 8), shards=(4, 6, 8))
    return folder


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy.zarr"


def assert_copied(copy, source):
    wanted, found = (zarr.open_group(str(path), mode="r") for path in (source, copy))
    for name, array in wanted.arrays():
        assert found[name][...].tobytes() == array[...].tobytes(), name
    assert not copying.partial_of(copy).exists()


def one(source, copy, number, count, **arguments):
    return zarr_dali.rechunk(source, copy, part=(number, count), **(ARGUMENTS | arguments))


@pytest.mark.parametrize("count", quick([1, 2, 3, 7, 50], 1, 3))
def test_the_last_part_gives_the_copy_its_name(source, copy, tmp_path, count):
    whole = zarr_dali.rechunk(source, tmp_path / "whole.zarr", stats=True, verify=True, **ARGUMENTS)
    order = list(range(1, count + 1))
    random.Random(count).shuffle(order)
    stats = tmp_path / "stats.json"
    for at, number in enumerate(order):
        assert not copy.exists() and not stats.exists()
        done = one(source, copy, number, count, stats=stats, verify=True)
        assert sorted(done.waiting) == sorted(order[at + 1 :])
        if done.waiting:
            assert done.statistics is done.checksums is None
    assert_copied(copy, source)
    assert (done.statistics, done.checksums) == (whole.statistics, whole.checksums)
    assert json.loads(stats.read_text())["statistics"] == whole.statistics
    # Again: nothing is left to do, for none of them.
    assert one(source, copy, order[0], count, stats=stats).complete


@pytest.mark.parametrize("by", [None, "dim_1"])
def test_the_last_part_writes_the_statistics(source, tmp_path, by):
    output, wanted = tmp_path / "stats.json", zarr_dali.statistics(source, by=by)
    for number in (3, 1, 2):
        assert not output.exists()
        found = zarr_dali.statistics(source, by=by, output=output, part=f"{number}/3")
        assert found == (wanted if number == 2 else {})
        assert found.waiting == {3: (1, 2), 1: (2,), 2: ()}[number]
    assert json.loads(output.read_text()) == wanted
    assert not output.with_name("stats.json.partial").exists()
    with pytest.raises(ValueError, match="exists; choose another name"):
        zarr_dali.statistics(source, by=by, output=output, part="1/3")
    for number in (1, 2):
        found = zarr_dali.statistics(source, "t", output=output, part=(number, 2), overwrite=True)
    assert found.keys() == {"t"} == json.loads(output.read_text()).keys()


CHILD = """
    import sys, time
    import zarr_dali
    from zarr_dali._rechunk import array_copy, journal, reading, regions
    journal.FLUSH_SECONDS = regions.REGION_BYTES = 0
    what, source, out, part, seconds = sys.argv[1:6]
    if what == "rechunk":
        copy = array_copy.ArrayCopy.copy
        def slowly(self, number):
            time.sleep(float(seconds))
            return copy(self, number)
        array_copy.ArrayCopy.copy = slowly
        done = zarr_dali.rechunk(source, out, chunks={"dim_0": 1}, shards={"dim_0": 4}, codec="zstd",
                                 workers=2, stats=True, part=part, overwrite=len(sys.argv) > 6)
        print("waiting", *done.waiting)
    else:
        read = reading.SourceArray.read
        def slowly(self, place):
            time.sleep(float(seconds))
            return read(self, place)
        reading.SourceArray.read = slowly
        found = zarr_dali.statistics(source, output=out, part=part)
        print("waiting" if not found else "last")
"""


def started(what, source, out, part, *more, seconds=0.01):
    return start_script(CHILD, what, source, out, part, seconds, *more)


def ended(children):
    outcomes = []
    for child in children:
        out, text = child.communicate()
        assert child.returncode == 0, text
        outcomes.append(out.split())
    return outcomes


def test_side_by_side(source, copy, tmp_path):
    """All begin at the same moment, and one of them is the last."""
    outcomes = ended([started("rechunk", source, copy, f"{number}/3") for number in (1, 2, 3)])
    assert ["waiting"] in outcomes
    assert_copied(copy, source)
    output = tmp_path / "stats.json"
    outcomes = ended([started("statistics", source, output, f"{number}/3") for number in (1, 2, 3)])
    assert ["last"] in outcomes
    assert json.loads(output.read_text()) == zarr_dali.statistics(source)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_parts_are_killed_and_run_again(source, copy, tmp_path, seed):
    """Kills at random moments, while others work, until all have ended; in the end all is there, once."""
    draw, count = random.Random(seed), 3
    before = seed % 2 == 1
    if before:
        zarr_dali.rechunk(source, copy, variables="t")
    what, out = ("statistics", tmp_path / "stats.json") if seed == 3 else ("rechunk", copy)
    more = ["overwrite"] if before else []
    left, kills = {1, 2, 3}, 0
    for _ in range(30):
        children = {number: started(what, source, out, f"{number}/{count}", *more) for number in left}
        time.sleep(draw.uniform(0, 2.5))
        victim = draw.choice(sorted(children)) if kills < 5 else None
        for number, child in children.items():
            if number == victim:
                child.send_signal(signal.SIGKILL)
            text = child.communicate()[1]
            if what == "statistics" and out.exists() and "exists; choose another name" in text:
                left.discard(number)  # the last one was killed behind the end of all
                continue
            assert child.returncode in (0, -signal.SIGKILL), text
            if child.returncode:
                kills += 1
            else:
                left.discard(number)
        if not left:
            break
        if what == "rechunk" and before and (copy / "t").exists() and not (copy / "u").exists():
            assert np.array_equal(
                zarr.open_group(str(copy), mode="r")["t"][...],
                zarr.open_group(str(source), mode="r")["t"][...],
            )
    assert not left
    if what == "rechunk":
        assert_copied(copy, source)
    else:
        assert json.loads(out.read_text()) == zarr_dali.statistics(source)


def interrupted(source, copy, number, count, share=0.5):
    def stop(what, done, total):
        if done >= share * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one(source, copy, number, count, progress=stop)


def test_a_part_goes_on_with_what_it_did(source, copy):
    interrupted(source, copy, 1, 2)
    assert one(source, copy, 2, 2).waiting == (1,)
    done = one(source, copy, 1, 2)
    assert done.waiting == () and 0 < done.resumed_bytes < done.plan.bytes / 2
    assert_copied(copy, source)


@pytest.mark.parametrize("count", [2, 3])
def test_one_run_goes_on_with_what_parts_did(source, copy, count):
    """Or parts of another number, or first one, then the other."""
    interrupted(source, copy, 1, 2)
    one(source, copy, 2, 2)
    with pytest.raises(ValueError, match="left of an earlier run: resume=True goes on"):
        zarr_dali.rechunk(source, copy, **ARGUMENTS)
    if count == 3:
        for number in (1, 2):
            one(source, copy, number, count)
        done = one(source, copy, 3, count)
    else:
        done = zarr_dali.rechunk(source, copy, resume=True, **ARGUMENTS)
        assert 0.5 * done.plan.bytes < done.resumed_bytes < done.plan.bytes
    assert done.waiting == ()
    assert_copied(copy, source)


def test_parts_go_on_with_what_one_run_did(source, copy):
    def stop(what, done, total):
        if done >= total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zarr_dali.rechunk(source, copy, progress=stop, **ARGUMENTS)
    resumed = [one(source, copy, number, 2).resumed_bytes for number in (1, 2)]
    assert all(resumed) and sum(resumed) >= 0.4 * 2 * 40 * 6 * 8 * 4
    assert_copied(copy, source)


def test_a_killed_last_part_alone_is_run_again(source, copy, monkeypatch):
    """The others have ended, and need not be run again."""
    one(source, copy, 1, 2)

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            one(source, copy, 2, 2)
    assert not copy.exists()
    assert one(source, copy, 2, 2).waiting == ()
    assert_copied(copy, source)


def test_a_source_that_changed_while_others_worked(source, copy):
    one(source, copy, 1, 2)
    array = zarr.open_array(str(source / "t"), mode="r+")
    array[...] = array[...] + 1
    with pytest.raises(
        RuntimeError, match=r"has changed while the source was copied.*resume=True copies again"
    ):
        one(source, copy, 2, 2)
    assert not copy.exists()
    assert one(source, copy, 1, 2).again_bytes > 0
    assert_copied(copy, source)


def test_what_does_not_fit_together(source, copy, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "TIMEOUT_S", 0.2)
    for given in ("3", "0/2", "3/2", "a/b", (1,), (1, 2, 3), 5, "1/0"):
        with pytest.raises(ValueError, match=r"is no part of a whole; give it as 3/8"):
            zarr_dali.rechunk(source, copy, part=given)
    with pytest.raises(ValueError, match="give `output`"):
        zarr_dali.statistics(source, part="1/2")

    def others(what, done, total):
        if done:
            return
        with pytest.raises(
            ValueError, match=rf"part 1 of 3 is run by another process \(process {os.getpid()}"
        ):
            one(source, copy, 1, 3)
        with pytest.raises(ValueError, match="is being written in 3 parts, not in 2"):
            one(source, copy, 1, 2)
        with pytest.raises(ValueError, match="another process is writing it"):
            zarr_dali.rechunk(source, copy, resume=True, **ARGUMENTS)
        with pytest.raises(ValueError, match="begun with other arguments"):
            one(source, copy, 2, 3, codec="none")
        assert one(source, copy, 2, 3).waiting == (1, 3)

    one(source, copy, 1, 3, progress=others)

    def part(what, done, total):
        if not done:
            with pytest.raises(ValueError, match="another process is writing it"):
                one(source, tmp_path / "whole.zarr", 1, 3)

    zarr_dali.rechunk(source, tmp_path / "whole.zarr", progress=part, **ARGUMENTS)
    with pytest.raises(ValueError, match="exists and is a copy with other arguments"):
        one(source, tmp_path / "whole.zarr", 1, 3, codec="none")
    one(source, copy, 3, 3)
    assert_copied(copy, source)


def test_replacing_a_store(source, copy):
    zarr_dali.rechunk(source, copy, variables="t")
    for number, problem in ((1, " and is a copy with other arguments"), (2, "; choose another name")):
        with pytest.raises(ValueError, match=f"exists{problem}"):
            one(source, copy, number, 2)
        assert sorted(zarr.open_group(str(copy), mode="r")) == ["t"]
        one(source, copy, number, 2, overwrite=True)
    assert_copied(copy, source)


def test_all_regions_are_of_one_part_each():
    for count in (1, 2, 5, 8):
        made = [parts.Part.of(f"{number}/{count}") for number in range(1, count + 1)]
        for region in range(40):
            assert sum(part.has(region) for part in made) == 1
        names = {part.file for part in made}
        assert len(names) == count and all(lock.OURS.fullmatch(name) for name in names)
    assert lock.OURS.fullmatch(fence.NAME) and str(parts.Part(2, 3)) == "part 2 of 3"
    assert parts.Part.of(None) is None and parts.Part.of((2, 3)) == parts.Part.of(" 2 / 3 ")


def test_the_commands(source, copy, tmp_path):
    def run(*arguments):
        done = CliRunner().invoke(cli.main, [*map(str, arguments)])
        assert done.exit_code == 0, done.output
        return done.output

    options = ["rechunk", source, copy, "--chunks", "dim_0=1"]
    assert re.search(
        r"part 1/3 of .* is finished; parts 2, 3 are still to end", run(*options, "--part", "1/3")
    )
    assert "part 3 is still to end" in run(*options, "--part", "2/3")
    assert re.search(r"copy.zarr: .* in .* s", run(*options, "--part", "3/3"))
    output = tmp_path / "stats.json"
    said = run("statistics", source, "-o", output, "--part", "1/2")
    assert f"part 1/2 is finished; part 2 is still to end, and the last one writes {output}" in said
    assert "2 arrays" in run("statistics", source, "-o", output, "--part", "2/2")
    done = CliRunner().invoke(cli.main, ["statistics", str(source), "--part", "1/2"])
    assert done.exit_code == 1 and "part: give --output, through which" in done.output
    done = CliRunner().invoke(
        cli.main, ["statistics", str(source), "-o", str(tmp_path / "more.json"), "--part", "1/3", "--json"]
    )
    assert json.loads(done.stdout) == {} and "parts 2, 3 are still to end" in done.stderr


def test_a_journal_of_a_part_that_belongs_to_another_run(source, copy):
    interrupted(source, copy, 1, 2)
    partial = copying.partial_of(copy)
    stale = (partial / parts.Part(1, 2).file).read_bytes()
    # Begun anew: what the journal notes is of a store that is gone.
    with pytest.raises(KeyboardInterrupt):
        zarr_dali.rechunk(source, copy, overwrite=True, progress=stop_at_once, **ARGUMENTS)
    assert not (partial / parts.Part(1, 2).file).exists()
    (partial / parts.Part(1, 2).file).write_bytes(stale)
    done = one(source, copy, 1, 2)
    assert done.resumed_bytes == 0 and one(source, copy, 2, 2).waiting == ()
    assert_copied(copy, source)
    assert len(chunk_files(copy / "t")) > 5


def stop_at_once(what, done, total):
    raise KeyboardInterrupt


def test_journals_of_parts_are_journals(tmp_path):
    path = tmp_path / "log"
    lines = [
        {"part": [1, 2], "run": "x", "version": journal.VERSION},
        ["t", 1, None, "s", [1, 2]],
        ["t", 1],
        ["t", 2, None, "s", [1, 2]],
    ]
    path.write_bytes(b"".join(map(journal.line, [*lines, {"ended": {}}])))
    found = journal.stored(path)
    assert found.done.keys() == {("t", 2)} and found.forgotten == {("t", 1)} and found.ended == {}
    path.write_bytes(path.read_bytes() + journal.line({"process": 1, "host": "h"}))
    assert journal.stored(path).ended is None
    assert journal.stored(tmp_path / "none").header is None
