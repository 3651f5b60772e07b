"""Epochs of a query that others run: reports and the checkpoint together, whatever is dropped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.observing.epochs import ObservedEpochs, missed, newest
from spark_ext.queries.history import FIGURES_WITHIN
from spark_ext.spark.watching.query_events import Hint
from tests.queries.fakes import Clock

SHARED = {"query": "q", "query_id": "id", "lineage": 1, "incarnation": 1}
BEGAN = 1_000_000.0


def report(epoch: int) -> Hint:
    return Hint("progress", "id", "run", epoch, 10 * epoch, 5, 0)


def commit(folder: Path, epoch: int, at: float = BEGAN + 1) -> None:
    """As Spark writes an epoch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    offsets = "\n".join(["v1", json.dumps({"batchWatermarkMs": 0}), str(epoch)])
    (folder / "offsets" / str(epoch)).write_text(offsets)
    (folder / "commits" / str(epoch)).write_text("v1\n{}")
    os.utime(folder / "commits" / str(epoch), (at + epoch, at + epoch))


def given_rows(epochs: ObservedEpochs) -> list[tuple[int, int | None]]:
    return [(row.epoch, row.input_rows) for row in epochs.rows(SHARED)]


def test_which_commits_are_still_to_be_recorded() -> None:
    commits = [(5, 10.0), (6, 11.0), (7, 20.0), (8, 21.0)]
    assert missed(commits, 15.0, None, None) == [7, 8], "of a query that was never seen: those of this run"
    assert missed(commits, 30.0, None, 6) == [6, 7, 8], "which Spark's first report may date back further"
    assert missed(commits, 15.0, 5, None) == [6, 7, 8], "of one that was seen: all since"
    assert missed(commits, 15.0, 8, None) == []


def test_either_a_report_or_the_checkpoint_says_what_is_committed() -> None:
    assert newest(3, -1, None) == 3
    assert newest(3, 5, None) == 5
    assert newest(3, -1, 6) == 6
    assert newest(3, 5, 4) == 5


@given(dropped=st.sets(st.integers(0, 9)), looks=st.sets(st.integers(0, 9)), readable=st.booleans())
def test_dropped_reports_change_no_figure(dropped: set[int], looks: set[int], readable: bool) -> None:
    clock = Clock()
    with TemporaryDirectory() as name:
        folder = Path(name)
        epochs = ObservedEpochs(clock)
        epochs.begin(str(folder) if readable else "nowhere://here", BEGAN, None, None)
        found = []
        for epoch in range(10):
            commit(folder, epoch)
            if epoch not in dropped:
                epochs.report(report(epoch))
            if epoch in looks:
                epochs.poll()
                found += given_rows(epochs)
        # What Spark is asked for at last: the reports after the newest one.
        clock.now += 2
        if not epochs.readable or epochs.history.overdue():
            for epoch in range(epochs.history.reported_upto + 1, 10):
                epochs.report(report(epoch))
        epochs.poll()
        clock.now += FIGURES_WITHIN + 1
        found += given_rows(epochs)
        first = 0 if readable else min([*(set(range(10)) - dropped), 0 if len(dropped) == 10 else 9])
        assert [epoch for epoch, _ in found] == list(range(first, 10))
        assert all(rows in (None, 10 * epoch) for epoch, rows in found)
        # A report that was dropped before a later one came is not asked for again.
        assert {epoch for epoch, rows in found if rows is None} <= dropped


def test_epochs_that_ran_unobserved_are_recorded_without_figures(tmp_path: Path) -> None:
    for epoch in range(4):
        commit(tmp_path, epoch, BEGAN - 100)
    epochs = ObservedEpochs(Clock())
    epochs.begin(str(tmp_path), BEGAN, 1, None)
    assert given_rows(epochs) == [(2, None), (3, None)]
    commit(tmp_path, 4)
    epochs.report(report(4))
    assert epochs.poll() and given_rows(epochs) == [(4, 40)]
    commit(tmp_path, 5)
    epochs.poll()
    (row,) = epochs.rows(SHARED, everything=True)
    assert row.committed_at.timestamp() == BEGAN + 1 + 5 and row.offsets == [5]


def test_a_checkpoint_that_cannot_be_read_for_a_while_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = ObservedEpochs(Clock())
    epochs.begin(str(tmp_path), BEGAN, None, None)
    commit(tmp_path, 0)
    assert epochs.poll() and epochs.committed == 0

    def away(epoch: int) -> bool:
        raise OSError("away")

    assert epochs._log is not None
    monkeypatch.setattr(epochs._log, "is_committed", away)
    assert not epochs.poll()
    epochs.report(report(1))
    assert epochs.poll() and epochs.committed == 1
