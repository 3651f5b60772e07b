"""Savepoints, restores and rescales that are refused: by name, and nothing is changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_ext.checkpoints.savepoint import read_savepoint
from spark_ext.errors import ConfigurationError, SparkExtError, StateError
from spark_ext.failpoints import FailPoint
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.storage import checksum
from tests.support.refusals import broken, refused
from tests.support.saved import ALL, Chain
from tests.support.waiting import until

Change = Callable[[Path], object]


def changelog(savepoint: Path) -> Path:
    return min(savepoint.rglob("*.changelog"))


def truncated(savepoint: Path) -> None:
    file = changelog(savepoint)
    file.write_bytes(file.read_bytes()[:-1])


def flipped(savepoint: Path) -> None:
    file = min(file for file in (savepoint / "exchanges").rglob("*") if file.is_file() and file.stat().st_size > 500)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def of_the_future(savepoint: Path) -> None:
    manifest = savepoint / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 3}))


DAMAGES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "without-manifest": (lambda at: (at / "manifest.json").unlink(), ("is not complete", "no manifest.json")),
    "torn-manifest": (
        lambda at: (at / "manifest.json").write_text((at / "manifest.json").read_text()[:-20]),
        ("is damaged", "manifest.json cannot be understood"),
    ),
    "truncated": (truncated, ("is damaged", ".changelog has", "was written with")),
    "gone": (lambda at: changelog(at).unlink(), ("is damaged", ".changelog is missing")),
    "one-byte": (flipped, ("is damaged", "the file exchanges/x/", "the checksum")),
    "flags-gone": (lambda at: (at / "flags.arrow").unlink(), ("is damaged", "flags.arrow is missing")),
    "of-the-future": (of_the_future, ("has version 3; this release reads versions 1 to 2",)),
    "gone-altogether": (shutil.rmtree, ("no savepoint found",)),
}


def test_a_damaged_savepoint(chain: Chain) -> None:
    for damage, (change, _) in DAMAGES.items():
        shutil.copytree(chain.savepoint, chain.folder / damage)
        change(chain.folder / damage)
    before = chain.content()
    for job in (chain.job(), chain.job("other", "other-out")):
        for damage, (_, words) in DAMAGES.items():
            with refused(StateError, "savepoint", str(chain.folder / damage), *words):
                job.restore(chain.folder / damage)
                pytest.fail(f"a savepoint that is {damage} was restored")
    assert chain.content() == before


def test_of_a_job_with_another_past(chain: Chain) -> None:
    """Two jobs that were restored from one savepoint have a history each from then on."""
    chain.job("other", "other-out").restore(chain.savepoint)
    before = chain.content()
    with refused(StateError, "is of job 'chain' with another state directory", "restore into an empty state"):
        chain.job("other", "other-out").restore(chain.savepoint)
    assert chain.content() == before


def test_without_table_positions_it_is_not_restored_in_place(chain: Chain) -> None:
    """As a release wrote it that knew none: the table would be rolled back to nothing."""
    place, manifest = chain.savepoint / "checkpoint.json", chain.savepoint / "manifest.json"
    metadata = json.loads(place.read_text())
    del metadata["queries"]["unique"]["sinks"]["unique"]["position"]
    place.write_text(json.dumps({**metadata, "version": 1}))
    sealed = json.loads(manifest.read_text())
    sealed["files"]["checkpoint.json"] = checksum(str(place))
    manifest.write_text(json.dumps(sealed))
    before = chain.content()
    with refused(StateError, "where the target of sink 'unique' was after epoch", "accept_duplicates=('unique',)"):
        chain.job().restore(chain.savepoint)
    assert chain.content() == before
    chain.job("other", "other-out").restore(chain.savepoint)


def removed(chain: Chain) -> Job:
    job = chain.empty()
    return job.add("rows", job.exchange("x", partitions=4, key="k").write(chain.source()))


def renamed(chain: Chain) -> Job:
    job = removed(chain)
    return job.add("single", chain.table(chain.unique(job._parts.exchanges["x"].read("x-in"))))


def other_source(chain: Chain) -> Job:
    job = chain.empty()
    x = job.exchange("x", partitions=4, key="k")
    job.add("rows", x.write(chain.source("another")))
    return job.add("unique", chain.table(chain.unique(x.read("x-in"))))


def other_producer(chain: Chain) -> Job:
    job = chain.empty().remove("rows")
    x = job.exchange("x", partitions=4, key="k")
    job.add("fresh", x.write(chain.source("another")))
    return job.add("unique", chain.table(chain.unique(x.read("x-in"))))


def without_exchange(chain: Chain) -> Job:
    job = chain.empty().remove("rows")
    return job.add("unique", chain.table(chain.unique(job.exchange("x", schema=chain.source().schema).read("x-in"))))


CHANGES: dict[str, tuple[Callable[[Chain], Job], tuple[str, ...]]] = {
    "removed": (removed, ("query 'unique' is in the savepoint, where it had committed epoch", "job.remove('unique')")),
    "renamed": (renamed, ("query 'unique' is in the savepoint", "renamed_from='unique'")),
    "other-source": (other_source, ("query 'rows'", "in", "another")),
    "other-producer": (
        other_producer,
        ("sink 'x' belongs to query 'rows' in the savepoint", "is now in query 'fresh'"),
    ),
    "moved": (lambda chain: renamed(chain).remove("unique"), ("belongs to query 'unique'", "is now in query 'single'")),
    "other-target": (
        lambda chain: chain.job(out="elsewhere"),
        ("option 'path' of sink 'unique' was", "put it back as it was"),
    ),
    "without-producer": (without_exchange, ("exchange 'x'", "no query of the job writes")),
}


def test_of_a_job_that_has_changed(chain: Chain) -> None:
    before = chain.content()
    for change, (make, words) in CHANGES.items():
        with pytest.raises((ConfigurationError, StateError)) as refusal:
            make(chain).restore(chain.savepoint)
            pytest.fail(f"a job with the change '{change}' was restored")
        for word in words:
            assert word in str(refusal.value), f"{change}: {refusal.value}"
        assert refusal.value.operator and refusal.value.kept and refusal.value.do
    assert chain.content() == before


def test_options_that_name_nothing(chain: Chain) -> None:
    before, job = chain.content(), chain.job()
    with refused(ConfigurationError, "state_partitions names query 'other'", "is not in the savepoint"):
        job.restore(chain.savepoint, state_partitions={"other": 3})
    with refused(ConfigurationError, "0 partitions of query 'unique'"):
        job.restore(chain.savepoint, state_partitions={"unique": 0})
    with refused(ConfigurationError, "accept_duplicates names 'other'", "its sinks are: unique"):
        job.restore(chain.savepoint, accept_duplicates=("other",))
    with refused(StateError, "checkpoint 7 is not retained", "retained are: none"):
        job.restore(7)
    with refused(StateError, "query 'rows'", "has no state"):
        job.restore(chain.savepoint, state_partitions={"rows": 3, "unique": 3})
    assert chain.content() == before
    assert job.run(progress=False).rows == 0, "it can be started, for no restore has begun"
    other = chain.job("other", "other-out")
    with refused(StateError, "has no state"):
        other.restore(chain.savepoint, state_partitions={"rows": 3})
    other.restore(chain.savepoint)


def test_another_job_with_the_same_target(chain: Chain) -> None:
    """Under the same uid no start would accept it; under another one each row would be there twice, and unnoticed."""
    before = chain.content()
    with refused(ConfigurationError, "sink 'unique' writes to the target of the savepoint's job", "write elsewhere"):
        chain.job("other", "out").restore(chain.savepoint)

    def with_another_uid() -> Job:
        job = chain.empty("other")
        x = job.exchange("x", partitions=4, key="k")
        job.add("rows", x.write(chain.source()))
        return job.add("unique", chain.table(chain.unique(x.read("x-in"))).option("uid", "again"))

    with refused(ConfigurationError, "sink 'again' writes to the target of the savepoint's job"):
        with_another_uid().restore(chain.savepoint)
    assert {name for name in chain.content() if not name.startswith("other/")} == set(before)
    with_another_uid().restore(chain.savepoint, accept_duplicates="again")


def test_a_table_that_was_changed_since(chain: Chain) -> None:
    """It is refused in place alone: another job writes to a table of its own, and does not look at this one."""
    rows = pa.table({"channel": ["2"], "n": pa.array([7], pa.int64())})
    write_deltalake(chain.folder / "out" / "unique", rows, mode="append")
    before = chain.content()
    with refused(StateError, "sink 'unique'", "another writer has changed its rows"):
        chain.job().restore(chain.savepoint)
    assert chain.content() == before
    chain.job("other", "other-out").restore(chain.savepoint)


def test_an_exchange_that_is_something_else(chain: Chain) -> None:
    """In the place of the one that is to be put back."""
    about = chain.folder / "state" / "exchanges" / "x" / "exchange.json"
    text = about.read_text()
    before, job = chain.content(), chain.job()
    about.write_text("{}")
    for act in (lambda: job.restore(chain.savepoint), chain.job):
        with refused(StateError, "exchange 'x'", "not an exchange of this package, or it is damaged"):
            act()
    about.write_text(text)
    assert chain.content() == before
    assert job.run(progress=False).rows == 0, "the job has not been touched"


def test_a_folder_in_which_no_savepoint_can_be(chain: Chain) -> None:
    file = chain.folder / "file"
    file.write_text("")
    before, job = chain.content(), chain.job()

    def cannot(path: Path, *words: str) -> None:
        with pytest.raises(SparkExtError) as refusal:
            job.savepoint(path)
        for word in ("job 'chain'", *words):
            assert word in str(refusal.value), str(refusal.value)

    cannot(chain.savepoint, "is not empty")
    cannot(chain.folder / "state" / "queries" / "mine", "is inside the state directory")
    cannot(chain.folder / "state", "is inside the state directory")
    cannot(chain.folder, "is not empty")
    cannot(file / "below", "cannot be written", str(file))
    cannot(file, "cannot be written")
    cannot(Path("/proc/none/below"), "cannot be written")
    assert chain.content() == before
    with refused(StateError, "has not been started, so there is nothing to save"):
        chain.job("other", "other-out").savepoint(chain.folder / "of-nothing")
    assert not (chain.folder / "of-nothing").exists()


@pytest.mark.slow(15, "starts a linked job twice")
def test_rescales_that_cannot_be(chain: Chain) -> None:
    """And what a job that runs refuses, or survives."""
    running = chain.job()
    with refused(StateError, "query 'unique'", "has finished"):
        running.rescale("unique", 3)
    (chain.folder / "release").unlink()
    running.restore(chain.savepoint)
    before = chain.content()
    with refused(StateError, "query 'rows'", "has no state"):
        running.rescale("rows", 3)
    with refused(ConfigurationError, "'other'"):
        running.rescale("other", 3)
    for number in (0, -1):
        with refused(ConfigurationError, "query 'unique'", f"{number} partitions"):
            running.rescale("unique", number)
    assert chain.content() == before

    stopped = chain.job()
    running.start()
    for job in (running, stopped):
        with refused(StateError, "running" if job is running else "chain"):
            job.rescale("unique", 3)
        with refused(StateError, "running" if job is running else "chain"):
            job.restore(chain.savepoint)
    for place in (chain.savepoint, chain.folder / "state" / "mine"):
        for refusing in (running.stop, running.drain):
            with refused(ConfigurationError, f"the folder {place} is"):
                refusing(savepoint=place)
        with refused(ConfigurationError, f"the folder {place} is"):
            running.savepoint(place)
    second = chain.folder / "second"
    broken(FailPoint.SAVEPOINT_PINNED, lambda: running.savepoint(second))
    # The function of 'unique' is held in its first epoch: its state is being restored, as far as is known.
    assert not second.exists() and not running.state.ended and running.state is not State.FAILING
    incidents = Ledger(running.state_directory).table(IncidentRow)
    until(lambda: "given up" in {row.action for row in incidents.rows()}, "the incident")

    checkpoint = chain.folder / "state" / "queries" / "unique" / "checkpoint"
    offsets, commits = checkpoint / "offsets", checkpoint / "commits"

    def newest(folder: Path) -> int:
        return max(int(file.name) for file in folder.iterdir() if file.name.isdigit())

    until(lambda: newest(offsets) > newest(commits), "the epoch that waits for the rows to be released")
    running.stop(savepoint=second)
    before = chain.content()
    epoch = newest(offsets)
    with refused(StateError, "query 'unique'", f"epoch {epoch} is planned and not committed"):
        stopped.rescale("unique", 3, timeout=0)
    assert chain.content() == before
    stopped.restore(second)
    assert newest(offsets) == newest(commits) == epoch - 1
    stopped.rescale("unique", 3)
    (chain.folder / "release").touch()
    assert stopped.start().drain(savepoint=chain.folder / "third").finished
    assert all(part.finished for part in read_savepoint(str(chain.folder / "third")).metadata.queries.values())
    assert len(chain.written()) == len(set(chain.written()) & set(ALL)) > 0
