"""Histories of savepoints, restores and rescales: after each of them the table has every row once."""

import shutil
from pathlib import Path

import pytest

from spark_ext.checkpoints.savepoint import read_savepoint
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.failpoints import FailPoint
from spark_ext.jobs.restoring import restore
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.testing.children import killed_at
from spark_ext.testing.exchange_driver import Place
from tests.support.attached import gateway_of
from tests.support.jobs import numbers, partitions
from tests.support.refusals import broken, delta_numbers
from tests.support.saved import ALL, Chain, act, first_rows, of_snapshot
from tests.support.waiting import until

RESTORE = tuple(point for point in FailPoint if point.startswith("restore."))
OF_EXCHANGES = FailPoint.RESCALE_REDISTRIBUTED
RESCALE = tuple(point for point in FailPoint if point.startswith("rescale.") and point is not OF_EXCHANGES)
SAVEPOINT = tuple(point for point in FailPoint if point.startswith("savepoint."))
KILLED = {
    "restore": (FailPoint.RESTORE_BEGUN, FailPoint.RESTORE_MOVED_ASIDE, FailPoint.RESTORE_COMPLETE),
    "savepoint": (FailPoint.SAVEPOINT_PINNED, FailPoint.SAVEPOINT_BEFORE_MANIFEST, FailPoint.SAVEPOINT_SEALED),
    "rescale": (FailPoint.RESCALE_COPIED, FailPoint.RESCALE_MOVED_ASIDE),
}  # after which different things are left behind


@pytest.mark.slow(20, "runs three linked jobs")
def test_r10_r13_in_place_after_the_end_and_again_as_another_job(chain: Chain) -> None:
    """What came after the savepoint is taken away, and written again, without the savepoint or what it replaced."""
    saved = read_savepoint(str(chain.savepoint))
    assert saved.about.rows_in_flight and not any(part.finished for part in saved.metadata.queries.values())
    elsewhere = chain.savepoint.rename(chain.folder / "moved")
    job = chain.job()
    job.restore(elsewhere)
    before = chain.written()
    assert 0 < len(before) < len(ALL) and set(before) < set(ALL)
    state = chain.folder / "state"
    commits = saved.metadata.queries["unique"].epoch
    checkpoint = state / "queries" / "unique" / "checkpoint"
    log = SparkLog(str(checkpoint))
    assert (log.newest_offsets(), log.newest_commit()) == (commits, commits)
    files = [file for file in checkpoint.rglob("*") if file.is_file() and not of_snapshot(file)]
    kept = {str(file.relative_to(checkpoint)) for file in files}
    restored = {name for name in saved.below("queries/unique/checkpoint") if not of_snapshot(Path(name))}
    assert kept == restored, "no other file of Spark's"
    job.restore(elsewhere)
    assert chain.written() == before, "once more, with nothing in between"
    shutil.copytree(elsewhere, chain.savepoint)
    shutil.rmtree(elsewhere)
    shutil.rmtree(state / "replaced")
    assert job.run(progress=False).finished and chain.written() == ALL
    assert chain.job().run(progress=False).rows == 0
    assert chain.job("other", "other-out").restore(chain.savepoint).run(progress=False).finished
    assert sorted([*before, *chain.written("other-out")]) == ALL, "what had been written before is in the first table"
    assert chain.written() == ALL, "which the other job leaves alone"


@pytest.mark.slow(20, "restores and rescales once per step")
def test_interrupted_at_each_step_and_repeated(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore in place, a savepoint of that, its restore, and a rescale: no start gets in between two steps."""
    monkeypatch.setattr(restore, "MARGIN", 1)
    exchange = Place("arrow", str(chain.folder / "state" / "exchanges" / "x"))
    before = exchange.parts().master.log.look().last
    job = chain.job()
    for point in RESTORE:
        broken(point, lambda: job.restore(chain.savepoint))
        if point is not FailPoint.RESTORE_COMPLETE:
            with pytest.raises(StateError, match=rf"a restore from {chain.savepoint} has begun and is not complete"):
                job.start()
            with pytest.raises(StateError, match="has begun and is not complete"):
                job.savepoint(chain.folder / "half")
        if point is FailPoint.RESTORE_MOVED_ASIDE:
            assert not Path(exchange.path).exists()
        if point is FailPoint.RESTORE_EXCHANGES:
            assert exchange.parts().master.log.look().last > before, "which the attempt before had moved aside"
    job.restore(chain.savepoint)
    second = chain.folder / "second"
    for point in SAVEPOINT:
        broken(point, lambda: job.savepoint(second))
        assert not second.exists()
    job.savepoint(second)
    job.restore(second, state_partitions={"unique": 3})
    checkpoint = chain.folder / "state" / "queries" / "unique" / "checkpoint"
    for number, point in enumerate(RESCALE, 4):
        broken(point, lambda number=number: job.rescale("unique", number))
    job.rescale("unique", 5)
    assert partitions(checkpoint) == 5
    assert chain.job().run(progress=False).finished
    assert chain.written() == ALL and partitions(checkpoint) == 5


def test_a_query_in_an_interrupted_rescale_is_known_to_a_restore(chain: Chain) -> None:
    """It came after the savepoint, and its checkpoint is beside its place: its rows are taken back nevertheless."""
    rows = numbers(chain.spark, "later-in", counts="40,40", max_rows_per_epoch=20, gate=chain.folder / "later")
    job = chain.job().add("later", chain.table(first_rows(rows, "channel", "n").select("channel", "n"), "later"))
    job.start()
    until(lambda: job.snapshot().query("later").rows > 0 or job.done, "the first rows")
    job.stop()
    broken(FailPoint.RESCALE_MOVED_ASIDE, lambda: job.rescale("later", 3))
    job.restore(chain.savepoint)
    assert delta_numbers(chain.folder / "out" / "later") == []


@pytest.mark.slow(15, "restores a new job once per step, and runs it")
def test_a_new_job_whose_restore_is_interrupted_at_each_step(chain: Chain) -> None:
    """With another number of state partitions. What its table had received is in the first one."""
    at_cut, other = read_savepoint(str(chain.savepoint)), chain.job("other", "other-out")

    def restore() -> object:
        return other.restore(chain.savepoint, state_partitions={"unique": 3})

    for point in RESTORE:
        if point is FailPoint.RESTORE_COMPLETE:
            continue
        broken(point, restore)
        with pytest.raises(StateError, match="has begun and is not complete"):
            other.start()
    restore()
    assert chain.job("other", "other-out").run(progress=False).finished
    chain.job().restore(chain.savepoint)
    assert sorted([*chain.written(), *chain.written("other-out")]) == ALL
    assert partitions(chain.folder / "other" / "queries" / "unique" / "checkpoint") == 3
    assert read_savepoint(str(chain.savepoint)) == at_cut


@pytest.mark.slow(15, "kills two or three processes, and runs the job")
@pytest.mark.parametrize("action", KILLED)
def test_killed_at_some_steps_and_continued_by_another_process(chain: Chain, action: str) -> None:
    """A killed restore has to be repeated, by the next process too; after any other kill the job continues, exact."""
    if action != "restore":
        chain.job().restore(chain.savepoint)
    for point in KILLED[action]:
        saved = chain.folder / point
        killed_at(point, act, gateway_of(chain.spark), chain.folder, action, saved)
        if action == "restore" and point is not FailPoint.RESTORE_COMPLETE:
            with pytest.raises(StateError, match="has begun and is not complete"):
                chain.job().start()
        elif point in (FailPoint.SAVEPOINT_PINNED, FailPoint.SAVEPOINT_BEFORE_MANIFEST):
            with pytest.raises(StateError, match="is not complete: it has no manifest"):
                chain.job().restore(saved)
            with pytest.raises(ConfigurationError, match="is not empty"):
                chain.job().savepoint(saved)
    assert chain.job().run(progress=False).finished
    assert chain.written() == ALL
