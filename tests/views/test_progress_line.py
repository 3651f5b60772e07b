"""The live line says what a job is doing, also while it has no figures yet; nothing else on the terminal tears it."""

import io
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from spark_ext.incidents.reporter import STOPPED, Incidents
from spark_ext.model.lifecycle import State
from spark_ext.queries.spark_query import phase_of
from spark_ext.spark.backend import process
from spark_ext.views.snapshot import JobSnapshot, QuerySnapshot
from spark_ext.views.style import clock, count, duration
from spark_ext.views.terminal import line, show
from tests.support.snapshots import T0, job, query, source
from tests.support.waiting import until


def test_one_query_has_one_line_and_several_a_line_each() -> None:
    sources = (source("files", 3, 1), source("more", 1, 1))
    found = job(query("q", rows=1000, epochs=4, last_epoch=8, last_epoch_ms=250, sources=sources), seconds=65)
    assert line(found).plain == (
        "flights RUNNING  1:05  4 epochs  1,000 rows  15 rows/s  channels: 4 finished, 2 running"
    )
    first = query("a", rows=10, epochs=1, last_epoch=7, last_epoch_ms=1250, sources=(source("s", 2, ended=True),))
    found = job(first, query("b"))
    assert line(found).plain.splitlines() == [
        "flights RUNNING  0:10  1 epoch  10 rows  1 rows/s",
        "  a RUNNING  epoch 7  10 rows  1,250 ms/epoch  channels: 2 finished, 0 running  end of input",
        "  b RUNNING  waiting for the first epoch",
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (query("q", State.CREATED), "waiting to start"), (query("q"), "waiting for the first epoch"),
        (query("q", phase=phase_of("Initializing sources")), "starting workers, waiting for the first epoch"),
        (query("q", phase=phase_of("Getting offsets from Python")), "planning, waiting for the first epoch"),
        (query("q", phase=phase_of("Stopped")), "waiting for the first epoch"),
        (query("q", State.DEPLOYING, phase="planning 1,500 files found", reason="x"), "planning 1,500 files found"),
        (query("q", State.DEPLOYING, reason="Spark is starting the query"), "Spark is starting the query"),
        (query("q", last_epoch=41), "resumed after epoch 41, waiting for the next epoch"),
        (query("q", State.FINISHING), "taking the final checkpoint"),
        (query("q", State.FINISHED, finished_before=True), "finished in an earlier run"),
        (query("q", State.CANCELED, reason="stopped"), "stopped"),
        (query("q", State.RESTARTING, reason="no route to host\n  at line 7"), "no route to host"),
    ],
)  # fmt: skip
def test_without_figures_the_line_says_what_the_query_is_doing(found: QuerySnapshot, said: str) -> None:
    assert line(job(found, state=found.state)).plain == f"flights {found.state.value}  0:10  {said}"
    beside = line(job(found, query("other"), state=found.state)).plain.splitlines()
    assert beside[:2] == [f"flights {found.state.value}  0:10", f"  q {found.state.value}  {said}"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"lag_rows": 1_200, "lag_at": T0 + timedelta(seconds=9)}, "lag 1,200"),
        ({"lag_rows": 1_200, "lag_at": T0 - timedelta(seconds=30)}, "lag 1,200, 40 s ago"),
        ({"lag_rows": 0, "lag_at": T0 - timedelta(seconds=290)}, "lag 0, 5:00 min ago"),
        ({"lag_rows": 7}, "lag 7"),
        ({"lag_rows": 7, "lag_at": T0 - timedelta(hours=1), "state": State.CANCELED}, "lag 7"),
        ({"lag_rows": 0, "state": State.FINISHED}, ""),
    ],
)
def test_the_lag_has_its_age_once_it_may_be_wrong(found: dict[str, Any], said: str) -> None:
    one = query("q", **{"epochs": 1, "last_epoch": 3, **found})
    alone, beside = line(job(one, state=one.state)).plain, line(job(one, query("other"), state=one.state)).plain
    for shown in (alone, beside.splitlines()[1]):
        assert shown.split("  ")[4:] == ([said] if said else [])


def test_a_long_reason_is_cut() -> None:
    found = line(job(query("q", State.RESTARTING, reason="word " * 100), state=State.RESTARTING)).plain
    assert len(found) < 140
    assert found.endswith("word ...")


def test_channels_that_only_a_ledger_knows_are_not_called_zero() -> None:
    assert line(job(query("q", sources=(source("s", 2, None),)))).plain.endswith("channels: 2 finished")


def test_a_rate_needs_time_and_rows() -> None:
    """Not `0 rows/s` for as long as nothing has been read."""
    assert "5 rows  0 rows/s" in line(job(query("q", rows=5, epochs=1), seconds=0)).plain
    assert line(job(query("q", epochs=1, last_epoch=0))).plain == "flights RUNNING  0:10  1 epoch  0 rows"


def snapshots(*, times: int) -> tuple[list[JobSnapshot], Iterator[bool]]:
    """A job that has one more row with each snapshot, and ends after so many waits."""
    return ([job(query("q", rows=number, epochs=1)) for number in range(times + 2)], iter([False] * times + [True]))


def lines_of(*taken: JobSnapshot) -> list[str]:
    """What is printed into a file of a job that ends with the last of these snapshots."""
    out, waited = io.StringIO(), list[float]()

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == len(taken) - 1

    show(lambda: taken[len(waited)], wait, Console(file=out, width=200))
    assert max(waited) < 5
    return out.getvalue().splitlines()


def test_without_a_terminal_what_has_changed_and_the_end_have_a_line() -> None:
    lag: dict[str, Any] = {"lag_rows": 7, "lag_at": T0}
    same = [job(query("q", rows=5, epochs=1, **lag), seconds=second) for second in (1, 20, 50)]
    more = job(query("q", rows=6, epochs=2, **lag), seconds=60)
    texts = lines_of(*same, more, more, job(query("q", rows=6, epochs=2, **lag), seconds=90))
    assert [text.split("  ")[1] for text in texts] == ["0:01", "1:00", "1:30"], "not the time, and the age of the lag"


def test_a_start_is_never_silent_for_five_seconds() -> None:
    starting = [job(query("q", State.DEPLOYING), state=State.DEPLOYING, seconds=4 * n) for n in range(4)]
    assert len(lines_of(*starting, job(query("q", rows=1, epochs=1)))) == 5


def test_what_is_being_done_is_shown_at_once_and_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "ANNOUNCED_EVERY", 0.01)
    said = ""

    def more(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return text in said

    with process.announced("starting Spark") as say:
        assert more("starting Spark\n"), "before anything has taken time"
        until(lambda: more("starting Spark  0:00"), "it is repeated")
        say("building the job")
        until(lambda: more("building the job  0:00"), "the next one is repeated")
        with process.announced("building the job"):
            pass
        with process.announced("downloading", quiet=True):
            until(lambda: more("downloading  0:00"), "inside another one it takes its place")
    said += capsys.readouterr().err
    assert said.splitlines().count("building the job") == 1, "it is said again only with the time"
    with process.announced("starting Spark", quiet=True) as say:
        say("more")
    assert capsys.readouterr().err == "", "in a pipe nobody waits"


def test_a_failure_that_is_raised_is_not_said_by_log_and_line_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """It is while other queries run: nobody raises it yet."""
    incidents, failed = Incidents(), query("q", State.FAILED, reason="no such city")

    def wait(_: float) -> bool:
        incidents.report("job 'flights', query 'q'", "failure", "it fails again", "restart 1")
        incidents.report("job 'flights', query 'q'", "failure", "no such city", STOPPED)
        return True

    out = io.StringIO()
    show(lambda: job(failed, state=State.FAILED), wait, Console(file=out, width=200))
    assert "it fails again" in caplog.text and "no such city" not in caplog.text + out.getvalue()
    assert "no such city" in line(job(failed, query("other"))).plain
    incidents.report("job 'flights', query 'r'", "failure", "no such city", STOPPED)
    assert "no such city" in caplog.text, "without progress"


def test_a_log_line_is_printed_above_the_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out, torn = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", torn)
    handler = logging.StreamHandler()
    elsewhere = logging.StreamHandler(file := io.StringIO())
    logger = logging.getLogger()
    taken, ends = snapshots(times=1)

    def wait(seconds: float) -> bool:
        logging.getLogger("spark_ext.job").warning("the broker was slow")
        return next(ends)

    for one in (handler, elsewhere):
        logger.addHandler(one)
    try:
        show(lambda: taken[0], wait, Console(file=out, force_terminal=True, width=120))
    finally:
        for one in (handler, elsewhere):
            logger.removeHandler(one)
    assert out.getvalue().count("the broker was slow\n") == 2
    assert torn.getvalue() == ""
    assert file.getvalue() == "the broker was slow\n" * 2, "a handler that writes to a file is left alone"
    assert handler.stream is torn is sys.stderr


def test_what_goes_into_a_pipe_is_not_taken_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out, pipe = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    _, ends = snapshots(times=1)

    def wait(seconds: float) -> bool:
        print("a row of the user's")
        return next(ends)

    show(lambda: job(query("q")), wait, Console(file=out, force_terminal=True, width=120))
    assert pipe.getvalue() == "a row of the user's\n" * 2
    assert "a row" not in out.getvalue()


def test_numbers_and_times() -> None:
    assert [count(number, "epoch") for number in (0, 1, 1000)] == ["0 epochs", "1 epoch", "1,000 epochs"]
    assert [clock(seconds) for seconds in (0, 59.4, 59.6, 3605)] == ["0:00", "0:59", "1:00", "1:00:05"]
    assert [duration(seconds) for seconds in (0.12, 3.46, 62, 3605)] == ["120 ms", "3.5 s", "1:02 min", "1:00:05"]
