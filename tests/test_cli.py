"""The commands that read a job's state: what they print, their exit codes, and that they need no Spark."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spark_ext import cli
from spark_ext.cli import main
from spark_ext.errors import (
    ConfigurationError,
    JobFailedError,
    JobRunningError,
    SparkExtError,
    StateError,
    StorageError,
    TransientError,
)
from spark_ext.ledger import Ledger, LedgerWriter, heartbeat, start_incarnation
from spark_ext.ledger.schema import CheckpointRow, EpochRow, ExecutionStateRow, FinishedRow, IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.views.snapshot import SourceSnapshot
from spark_ext.views.status import read_status
from spark_ext.views.terminal import line, show_rows

T0 = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def spark_ext(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    given = ["spark-ext", *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", given)
        patch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as ended:
            main()
    return subprocess.CompletedProcess(given, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def epoch_row(query: str, epoch: int, rows: int | None, lineage: int = 1) -> EpochRow:
    return EpochRow(
        query=query,
        query_id="id",
        epoch=epoch,
        lineage=lineage,
        incarnation=1,
        input_rows=rows,
        committed_at=T0 + timedelta(seconds=epoch),
        duration_ms=5,
        offsets=None,
    )


def flag(kind: str, source: str = "", channel: str = "", sequence: int = 0, lineage: int = 1) -> FinishedRow:
    return FinishedRow(
        kind=kind,
        query="daily",
        source=source,
        channel=channel,
        sequence=sequence,
        epoch=2,
        lineage=lineage,
        incarnation=1,
        position=None,
        drained=False,
        at=T0 + timedelta(seconds=3),
    )


def state_row(operator: str, state: str, seconds: int, reason: str = "") -> ExecutionStateRow:
    return ExecutionStateRow(
        operator=operator, state=state, since=T0 + timedelta(seconds=seconds), incarnation=1, reason=reason
    )


def write(state: Path) -> LedgerWriter:
    """A job whose query `daily` has finished and `live` runs in this process."""
    ledger = Ledger(str(state))
    writer = LedgerWriter(ledger, start_incarnation(ledger, "flights"))
    writer.append(
        [
            state_row("", "RUNNING", 0),
            state_row("daily", "RUNNING", 0),
            state_row("live", "RUNNING", 0),
            state_row("daily", "FINISHED", 3),
            *(epoch_row("daily", number, 100) for number in range(3)),
            epoch_row("daily", 2, 100),  # written twice, by a writer that was killed
            epoch_row("live", 0, None),
            flag("channel", "files", "2013-01.parquet", 1),
            flag("channel", "files", "2013-02.parquet", 2),
            flag("source", "files"),
            flag("query"),
            CheckpointRow(
                checkpoint_id=1,
                kind="final",
                query="daily",
                epoch=2,
                status="COMPLETED",
                lineage=1,
                incarnation=1,
                metadata={},
                at=T0 + timedelta(seconds=3),
            ),
            IncidentRow(
                incident_id="a",
                at=T0,
                job="flights",
                incarnation=1,
                operator="live",
                type="failure",
                labels={},
                what="the [network] was slow",
                evidence=None,
                action="restart 1",
                severity="WARNING",
                fingerprint="f",
            ),
        ]
    )
    return writer


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write(tmp_path / "state")
    return tmp_path / "state"


def test_status_as_json(state: Path) -> None:
    done = spark_ext("status", state, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["job"], found["state"], found["incarnation"], found["alive"]) == ("flights", "RUNNING", 1, True)
    daily, live = found["queries"]
    assert daily | {"since": "", "committed_at": ""} == {
        "uid": "daily",
        "state": "FINISHED",
        "since": "",
        "reason": "",
        "finished": True,
        "last_epoch": 2,
        "committed_at": "",
        "epochs": 3,
        "rows": 300,
        "bad_rows": 0,
        "late_rows": 0,
        "lag_rows": 0,
        "lag_at": None,
        "watermark": None,
        "newest_row": None,
        "channels_finished": {"files": 2},
        "latencies": [],
    }
    assert (live["finished"], live["epochs"], live["rows"]) == (False, 1, 0)
    assert found["incidents"][0]["what"] == "the [network] was slow"
    assert found["timeline"][0]["outcome"] == ""
    assert list(found) == [
        "job",
        "state_directory",
        "state",
        "incarnation",
        "lineage",
        "driver",
        "alive",
        "lost",
        "heartbeat",
        "silent",
        "queries",
        "incidents",
        "timeline",
        "damage",
    ]
    assert found["damage"] == []


def test_status_for_people(state: Path) -> None:
    done = spark_ext("status", state)
    assert done.returncode == 0, done.stderr
    assert "flights RUNNING, driver running" in done.stdout
    assert "files: 2" in done.stdout
    assert "the [network] was slow (restart 1)" in done.stdout
    assert "incarnation 1" in done.stdout


def test_a_lost_driver_is_distinguished_from_one_that_ended(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from tests.test_cli import write\n"
        "writer = write(Path(sys.argv[1]))\n"
        "if sys.argv[2] == 'end': writer.end('CANCELED')\n"
        "os._exit(9)"
    )
    for how in ("end", "die"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / how), how], cwd=Path.cwd(), check=False)
    ended, lost = read_status(str(tmp_path / "end")), read_status(str(tmp_path / "die"))
    assert (ended.alive, ended.lost, ended.timeline.spans[0].outcome) == (False, False, "CANCELED")
    assert (lost.alive, lost.lost, lost.timeline.spans[0].outcome) == (False, True, "lost")
    assert (
        "RUNNING when its driver was lost; start the job again to resume it"
        in spark_ext("status", tmp_path / "die").stdout
    )


def test_a_driver_without_a_heartbeat_for_a_minute_is_silent(state: Path) -> None:
    def shown() -> tuple[bool, bool]:
        found = json.loads(spark_ext("status", state, "--json").stdout)
        return found["silent"], "no heartbeat since" in spark_ext("status", state).stdout

    (row,) = [row for row in Ledger(str(state)).jobs() if row.event == "started"]
    assert row.start_id is not None
    file = state / heartbeat.FOLDER / f"{row.incarnation:010}-{row.start_id:016x}.json"
    assert shown() == (False, False), "it writes none"
    file.parent.mkdir(exist_ok=True)
    for seconds, silent in ((10, False), (120, True)):
        at = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        file.write_text(json.dumps({"at": at.isoformat()}))
        assert shown() == (silent, silent)
    file.unlink()


def test_status_is_a_snapshot(tmp_path: Path) -> None:
    writer = write(tmp_path / "state")
    found = read_status(str(tmp_path / "state"))
    assert (found.rows, found.epochs, found.finished, found.ended, found.error) == (300, 4, False, None, "")
    daily = found.query("daily")
    assert daily.sources == (SourceSnapshot(uid="files", finished=True, channels_finished=2, channels_running=None),)
    assert (daily.last_epoch_ms, daily.state_rows) == (5, None)
    assert line(found).plain.splitlines()[1] == (
        "  daily FINISHED  epoch 2  300 rows  5 ms/epoch  channels: 2 finished  end of input"
    )
    writer.append([state_row("live", "FAILED", 4, "no space left"), state_row("", "FAILED", 4)])
    writer.end("FAILED")
    found = read_status(str(tmp_path / "state"))
    assert (found.state, found.error) == (State.FAILED, "no space left")
    assert found.started is not None and found.ended is not None
    assert found.seconds == (found.ended - found.started).total_seconds()


def test_a_state_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "state").append([state_row("live", "SLEEPING", 4)])
    done = spark_ext("status", tmp_path / "state")
    assert done.returncode == 2
    assert "the ledger has the state 'SLEEPING', which this release does not know" in done.stderr


def test_rows_from_before_a_reset_do_not_count(tmp_path: Path) -> None:
    writer = write(tmp_path / "state")
    assert writer.new_lineage("daily", "again") == 2
    found = read_status(str(tmp_path / "state")).query("daily")
    assert (found.state, found.finished, found.epochs, found.channels_finished) == ("CREATED", False, 0, {})
    writer.append([epoch_row("daily", 0, 7, lineage=2), flag("channel", "files", "2013-01.parquet", 1, lineage=2)])
    found = read_status(str(tmp_path / "state")).query("daily")
    assert (found.epochs, found.rows, found.channels_finished) == (1, 7, {"files": 1})
    assert read_status(str(tmp_path / "state")).query("live").epochs == 1


def test_finished(state: Path) -> None:
    rows = json.loads(spark_ext("finished", state, "--json").stdout)
    assert [(row["kind"], row["source"], row["channel"]) for row in rows] == [
        ("query", "", ""),
        ("source", "files", ""),
        ("channel", "files", "2013-01.parquet"),
        ("channel", "files", "2013-02.parquet"),
    ]
    shown = spark_ext("finished", state).stdout
    assert "2013-02.parquet" in shown
    assert "2026-01-01 12:00:03.000" in shown


def test_epochs(state: Path) -> None:
    rows = json.loads(spark_ext("epochs", state, "--json").stdout)
    assert [(row["query"], row["epoch"]) for row in rows] == [("daily", 0), ("live", 0), ("daily", 1), ("daily", 2)]
    newest = json.loads(spark_ext("epochs", state, "--query", "daily", "--last", "2", "--json").stdout)
    assert [row["epoch"] for row in newest] == [1, 2]
    assert len(spark_ext("epochs", state).stdout.splitlines()) == 1 + 4


def test_checkpoints_are_those_of_the_whole_job(tmp_path: Path) -> None:
    writer = write(tmp_path / "state")
    common: dict[str, Any] = {"query": "", "epoch": None, "lineage": 1, "incarnation": 1, "metadata": None}
    statuses = [(2, "COMPLETED", "/kept/2"), (3, "FAILED", None), (2, "RELEASED", None)]
    for second, (number, status, path) in enumerate(statuses):
        row = CheckpointRow(
            checkpoint_id=number,
            kind="periodic",
            status=status,
            at=T0 + timedelta(seconds=second),
            reason="full" if status == "FAILED" else "",
            mode="aligned",
            path=path,
            **common,
        )
        writer.append([row])
    found = json.loads(spark_ext("checkpoints", tmp_path / "state", "--json").stdout)
    assert [(row["checkpoint_id"], row["status"], row["path"]) for row in found] == [
        (2, "COMPLETED", "/kept/2"),
        (2, "RELEASED", None),
        (3, "FAILED", None),
    ], "the final checkpoint of a query is not one of the job"
    newest = json.loads(spark_ext("checkpoints", tmp_path / "state", "--last", "1", "--json").stdout)
    assert [row["checkpoint_id"] for row in newest] == [3]
    shown = spark_ext("checkpoints", tmp_path / "state").stdout
    assert "/kept/2" in shown and "full" in shown


def test_an_unknown_query_is_refused_with_the_known_ones(state: Path) -> None:
    done = spark_ext("epochs", state, "--query", "dayly")
    assert done.returncode == 2
    assert "use one of: daily, live" in done.stderr


@pytest.mark.parametrize("command", ["status", "finished", "epochs", "checkpoints"])
def test_a_directory_without_a_job_is_refused_and_not_changed(tmp_path: Path, command: str) -> None:
    (tmp_path / "something").write_text("else")
    for place in (tmp_path, tmp_path / "missing"):
        done = spark_ext(command, place)
        assert done.returncode == 2
        assert "is not the state directory of a job" in done.stderr
        assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_a_state_directory_is_read_without_spark(state: Path) -> None:
    code = (
        "import sys\nfrom spark_ext.cli import app\n"
        "for command in ('status', 'finished', 'epochs', 'checkpoints', 'check'):\n"
        "    app([command, sys.argv[1]], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules and 'py4j' not in sys.modules, 'pyspark was loaded'"
    )
    done = subprocess.run([sys.executable, "-c", code, str(state)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_and_usage() -> None:
    done = subprocess.run([sys.executable, "-m", "spark_ext", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("spark-ext 0.")
    assert spark_ext("status").returncode == 2
    assert spark_ext("status", "x", "--storage", "nonsense").returncode == 2
    wrong = spark_ext("run", __file__, "--storage", "s3", "--storage", "nonsense")
    assert wrong.returncode == 2 and "'nonsense' is not s3 or KEY=VALUE" in wrong.stderr


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (ConfigurationError("wrong"), 2),
        (StateError("damaged"), 2),
        (StorageError("no answer"), 8),
        (TransientError("the server is starting"), 8),
        (JobFailedError("failed"), 1),
        (JobRunningError("another run"), 9),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Exception) else None,
)
def test_a_scheduler_can_tell_what_may_be_repeated(
    monkeypatch: pytest.MonkeyPatch, problem: SparkExtError, code: int
) -> None:
    """Not with the code of a configuration that cannot work."""

    def fails() -> None:
        raise problem

    monkeypatch.setattr(cli, "app", fails)
    done = spark_ext("run", "job.py")
    assert done.returncode == code and problem.what in done.stderr


def test_a_wide_table_is_not_cut_off_in_a_pipe() -> None:
    out = io.StringIO()
    channel = "/".join(f"part-{n}" for n in range(40))
    show_rows([{"kind": "channel", "channel": channel}], ("kind", "channel"), Console(file=out, width=80))
    assert f"channel  {channel}" in out.getvalue()


ENDS = """
import atexit, ctypes, sys
from spark_ext import cli

native = ctypes.CDLL(None)
# As a library may do whose threads outlive the interpreter.
native["__cxa_atexit"](ctypes.cast(native.abort, ctypes.c_void_p), None, None)

def main():
    atexit.register(print, "cleaned up")
    print("said", end="")
    {end}

cli.main = main
cli.console()
"""


@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("sys.exit(9)", 9), ("sys.exit('why')", 1)])
def test_the_process_ends_with_its_code_whatever_native_libraries_do_at_its_end(end: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS.format(end=end)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "saidcleaned up\n"), done.stderr
