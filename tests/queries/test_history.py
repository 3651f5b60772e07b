"""History of epochs: commits are facts, figures come by events or are asked for."""

import json
from dataclasses import replace

import pytest

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.model.epoch_parts import Sample
from spark_ext.model.pressure import Level
from spark_ext.queries import history as module
from spark_ext.queries.history import CommittedEpoch, EpochHistory, Figures, vitals
from spark_ext.queries.run import QueryRun
from spark_ext.spark.watching.query_events import Hint, SourceReport
from spark_ext.views.snapshot import InboxSnapshot
from tests.queries.fakes import Clock
from tests.support.jobs import JobHarness
from tests.support.waiting import until


def report(epoch: int, rows: int) -> Hint:
    return Hint("progress", "id", "run", epoch, rows, 7, 0)


def test_an_epoch_waits_for_its_figures_and_is_given_once() -> None:
    history = EpochHistory(Clock())
    history.committed(0, None)
    assert list(history.ready()) == []
    history.report(report(0, 5))
    history.report(report(0, 9))
    assert list(history.ready()) == [CommittedEpoch(0, None, 5, 7, state_rows=0)]
    assert list(history.ready(everything=True)) == []
    assert (history.figures.epochs, history.figures.input_rows) == (1, 5)


def test_late_rows_are_added_up_and_kept_with_their_epoch() -> None:
    history = EpochHistory(Clock())
    for number, late in enumerate((2, 0, 3)):
        history.committed(number, None)
        history.report(replace(report(number, 5), late_rows=late))
    history.committed(3, None)
    assert [epoch.late_rows for epoch in history.ready(everything=True)] == [2, 0, 3, None]
    assert history.figures.late_rows == 5


@pytest.mark.parametrize("counts", [True, False])
def test_rows_in_the_state_are_kept_with_their_epoch_or_are_unknown(counts: bool) -> None:
    history = EpochHistory(Clock(), counts_state=counts)
    assert history.figures.state_rows is None, "before the first epoch of a run"
    for number, rows in enumerate((4, 0)):
        history.committed(number, None)
        history.report(replace(report(number, 5), state_rows=rows))
    assert [epoch.state_rows for epoch in history.ready()] == ([4, 0] if counts else [None, None])
    assert history.state_after(1) == (0 if counts else None, 0)


def test_late_figures_are_asked_for_at_intervals_and_not_forever() -> None:
    history = EpochHistory(clock := Clock())
    assert not history.overdue()
    history.committed(0, None)
    assert not history.overdue()
    clock.now += module.ASK_AFTER
    assert history.overdue()
    assert not history.overdue()
    clock.now += module.ASK_EVERY
    assert history.overdue()
    history.report(report(0, 5))
    clock.now += module.ASK_EVERY
    assert not history.overdue()
    history.committed(1, None)
    clock.now += module.FIGURES_WITHIN + 1
    assert [it.input_rows for it in history.ready()] == [5, None]


def test_nobody_waits_for_figures_of_an_earlier_run() -> None:
    history = EpochHistory(Clock())
    history.begin_after(3)
    history.committed(3, None, in_this_run=False)
    assert list(history.ready()) == [CommittedEpoch(3, None, None, None)]
    assert history.figures.epochs == 0


def test_l5_dropped_events_cost_no_figure(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueryRun, "report", lambda *_: None)
    job = lab.job(lab.source(counts="1", live="true", rate=200)).start()
    table = Ledger(job.state_directory).table(EpochRow)
    seen = until(lambda: [row for row in table.rows() if row.input_rows], "an epoch with its rows, while the job runs")
    result = job.stop()
    epochs = sorted(table.rows(), key=lambda row: row.epoch)
    assert len(epochs) >= len(seen)
    # Spark does not report on the epoch in which it was stopped, even when it has committed it.
    reported = epochs if epochs[-1].input_rows is not None else epochs[:-1]
    assert sum(row.input_rows or 0 for row in reported) == result.rows > 0
    assert len(lab.rows()) >= result.rows


SPENT = {"planning": 1, "execution": 100, "log": 2}


def timed(epoch: int) -> Hint:
    return Hint("progress", "id", "run", epoch, 1, 103, 0, spent_ms=SPENT)


def test_an_epoch_waits_for_a_sample_of_it_or_of_a_later_one() -> None:
    history = EpochHistory(clock := Clock(), divides=True)
    for epoch in range(3):
        history.committed(epoch, None)
        history.report(timed(epoch))
    assert list(history.ready()) == []
    history.figures.sampled(Sample(1, 90.0, user_code=60.0))
    found = list(history.ready())
    assert [epoch.number for epoch in found] == [0, 1]
    assert all(epoch.parts_ms is not None and epoch.parts_ms["user_code"] == 60 for epoch in found)
    assert history.figures.parts_ms == found[-1].parts_ms
    clock.now += module.PARTS_WITHIN + 1
    (late,) = history.ready()
    assert late.parts_ms is not None, "an older sample is better than none"


def test_nobody_waits_long_for_a_sample() -> None:
    history = EpochHistory(clock := Clock(), divides=True)
    history.committed(0, None)
    history.report(timed(0))
    clock.now += module.PARTS_WITHIN + 1
    (found,) = history.ready()
    assert found.parts_ms is None and found.spent_ms == SPENT
    history.committed(1, None)
    history.report(timed(1))
    assert [epoch.number for epoch in history.ready(everything=True)] == [1]


def test_without_the_wish_nothing_is_divided() -> None:
    history = EpochHistory(Clock())
    history.committed(0, None)
    history.report(timed(0))
    history.figures.sampled(Sample(0, 90.0))
    assert [epoch.parts_ms for epoch in history.ready()] == [None]


def test_proportions_are_those_of_the_epoch_that_was_looked_at() -> None:
    history = EpochHistory(Clock(), divides=True)
    for epoch, execution in enumerate((100, 1_000)):
        history.committed(epoch, None)
        history.report(replace(timed(epoch), spent_ms={**SPENT, "execution": execution}))
    history.figures.sampled(Sample(1, 1_000.0, state=500.0))
    assert [epoch.parts_ms["state"] for epoch in history.ready() if epoch.parts_ms] == [50, 500]


def test_each_query_says_what_is_known_of_it() -> None:
    both = {"in": SourceReport(7, 0, 12.5), "other": SourceReport(None, 3, 12.5)}
    writes = Figures()
    writes.filled("x", Level(rows=3, bytes=40, stored=500, slowest="reader"))
    reads = Figures()
    inbox = InboxSnapshot(
        name="i", gateways={"sealed": 1}, accepted=1, acknowledged=1, repeats=0, conflicts=0, old=0, rejected={},
        bytes=0, max_bytes=0, oldest_s=None, ack_p50_ms=None, ack_p99_ms=None,
    )  # fmt: skip
    reads.arrived(inbox)
    found = vitals(
        [
            ("reads", reads),
            ("quiet", Figures()),
            ("writes", writes),
            ("half", Figures(reported=both, watermark="1970-01-01T00:00:00.000Z")),
            ("whole", Figures(reported={"in": both["in"]}, noted=lambda: {"in": SourceReport(9, None, 20.0)})),
            ("timed", Figures(watermark="2026-01-01T00:00:00.000Z", newest_row="2026-01-01T00:00:10.000Z")),
        ]
    )
    assert found == {
        "half": {"lag": {"in": [7, 12_500]}, "complete": False},
        "whole": {"lag": {"in": [9, 20_000]}, "complete": True},
        "writes": {"exchange": ["x", 3, 40, 500]},
        "reads": {"inboxes": [inbox.to_json()]},
        "timed": {"watermark": 1_767_225_600_000, "newest_row": 1_767_225_610_000},
    }
    assert json.loads(json.dumps(found)) == found
