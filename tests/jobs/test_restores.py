"""Histories of savepoints, restores and rescales: after each of them the table has every row once."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ext import failpoints
from spark_ext.checkpoints.savepoint import is_savepoint, read_savepoint
from spark_ext.errors import ConfigurationError, SparkExtError, StateError
from spark_ext.failpoints import FailPoint
from spark_ext.spark.epoch_files import state_partitions
from spark_ext.spark.spark_log import SparkLog
from tests.support.saved import ALL, Chain

RESTORE = tuple(point for point in FailPoint if point.startswith("restore."))
RESCALE = tuple(point for point in FailPoint if point.startswith("rescale."))
SAVEPOINT = tuple(point for point in FailPoint if point.startswith("savepoint."))

Break = Callable[..., None]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Runs a function that ends at a fail point, as a killed process leaves it: nothing is recorded afterwards."""
    monkeypatch.setattr(failpoints, "_passed", Counter())

    def run(point: FailPoint, action: Callable[[], object]) -> None:
        monkeypatch.setenv(failpoints.VARIABLE, f"{point}=raise")
        with pytest.raises(OSError, match=f"fail point {point}"):
            action()
        monkeypatch.delenv(failpoints.VARIABLE)

    return run


def planned(checkpoint: Path) -> tuple[int | None, int | None]:
    log = SparkLog(str(checkpoint))
    return log.newest_offsets(), log.newest_commit()


@pytest.mark.slow(20, "runs three linked jobs")
def test_r10_r13_in_place_after_the_end_and_again_as_another_job(chain: Chain) -> None:
    """What was written after the savepoint is taken away; nothing of the abandoned lineage is needed, nor of the
    savepoint once the restore is complete; and what was restored in place is restored elsewhere, and twice."""
    saved = read_savepoint(str(chain.savepoint))
    assert saved.about.rows_in_flight and not any(part.finished for part in saved.metadata.queries.values())
    elsewhere = chain.savepoint.rename(chain.folder / "moved")

    chain.job().restore(elsewhere)
    before = chain.written()
    assert 0 < len(before) < len(ALL) and set(before) < set(ALL)
    state = chain.folder / "state"
    commits = saved.metadata.queries["unique"].epoch
    assert planned(state / "queries" / "unique" / "checkpoint") == (commits, commits)
    kept = {str(file.relative_to(state / "queries" / "unique" / "checkpoint")) for file in _files(state, "unique")}
    assert kept == set(saved.below("queries/unique/checkpoint")), "no other file of Spark's"
    chain.job().restore(elsewhere)
    assert chain.written() == before, "once more, with nothing in between"
    shutil.copytree(elsewhere, chain.savepoint)
    shutil.rmtree(elsewhere)
    shutil.rmtree(state / "replaced")

    result = chain.job().run(progress=False)
    assert result.finished and chain.written() == ALL
    assert chain.job().run(progress=False).rows == 0

    other = chain.job("other", "other-out").restore(chain.savepoint)
    assert other.run(progress=False).finished
    assert sorted([*before, *chain.written("other-out")]) == ALL, "what had been written before is in the first table"
    assert chain.written() == ALL, "which the other job leaves alone"


def _files(state: Path, query: str) -> list[Path]:
    return [file for file in (state / "queries" / query / "checkpoint").rglob("*") if file.is_file()]


@pytest.mark.slow(20, "restores and rescales once per step")
def test_interrupted_at_each_step_and_repeated(chain: Chain, broken: Break) -> None:
    """Of a savepoint of the ended job, a restore in place, and a rescale. No start gets in between two of its steps."""
    twice = chain.folder / "of-the-end"
    for point in SAVEPOINT:
        broken(point, lambda: chain.job().savepoint(twice))
        assert not is_savepoint(str(twice))
    chain.job().savepoint(twice)
    assert all(part.finished for part in read_savepoint(str(twice)).metadata.queries.values())

    for point in RESTORE:
        broken(point, lambda: chain.job().restore(chain.savepoint))
        if point is not FailPoint.RESTORE_COMPLETE:
            with pytest.raises(StateError, match=rf"a restore from {chain.savepoint} has begun and is not complete"):
                chain.job().start()
            with pytest.raises(StateError, match="has begun and is not complete"):
                chain.job().rescale("unique", 3)
            with pytest.raises(StateError, match="has begun and is not complete"):
                chain.job().savepoint(chain.folder / "half")
    chain.job().restore(chain.savepoint)

    checkpoint = chain.folder / "state" / "queries" / "unique" / "checkpoint"
    for partitions, point in enumerate(RESCALE, 3):
        broken(point, lambda: chain.job().rescale("unique", partitions))
    chain.job().rescale("unique", 5)
    newest = SparkLog(str(checkpoint)).newest_commit()
    assert newest is not None and state_partitions(str(checkpoint), newest) == 5
    assert chain.job().run(progress=False).finished
    assert chain.written() == ALL
    assert state_partitions(str(checkpoint), SparkLog(str(checkpoint)).newest_commit() or 0) == 5


@pytest.mark.slow(15, "restores a new job once per step, and runs it")
def test_a_new_job_whose_restore_is_interrupted_at_each_step(chain: Chain, broken: Break) -> None:
    """With another number of state partitions. What its table had received is in the first one."""
    at_cut = read_savepoint(str(chain.savepoint))

    def restore() -> object:
        return chain.job("other", "other-out").restore(chain.savepoint, state_partitions={"unique": 3})

    for point in RESTORE:
        if point is FailPoint.RESTORE_COMPLETE:
            continue
        broken(point, restore)
        with pytest.raises(StateError, match="has begun and is not complete"):
            chain.job("other", "other-out").start()
    restore()
    assert chain.job("other", "other-out").run(progress=False).finished
    chain.job().restore(chain.savepoint)
    assert sorted([*chain.written(), *chain.written("other-out")]) == ALL
    checkpoint = chain.folder / "other" / "queries" / "unique" / "checkpoint"
    assert state_partitions(str(checkpoint), SparkLog(str(checkpoint)).newest_commit() or 0) == 3
    assert read_savepoint(str(chain.savepoint)) == at_cut
