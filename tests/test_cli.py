"""The commands that read a job's state: what they print, their exit codes, and that they need no Spark."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spark_ext import cli, errors
from spark_ext.cli import main
from spark_ext.commands.output import REFUSED
from spark_ext.ingest.log import LEASE, Lease
from spark_ext.ledger import Ledger, LedgerWriter, heartbeat, start_incarnation
from spark_ext.model.lifecycle import State
from spark_ext.views.snapshot import SourceSnapshot
from spark_ext.views.status import read_status
from spark_ext.views.terminal import line, show_rows
from tests.control import states
from tests.ledger.rows import checkpoint, definition, epoch, flag, incident
from tests.ledger.rows import state as state_row
from tests.support.inboxes import Inbox

T0 = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
END = T0 + timedelta(seconds=3)


def spark_ext(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    given = ["spark-ext", *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", given)
        patch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as ended:
            main()
    return subprocess.CompletedProcess(given, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def refused(*arguments: str | Path) -> str:
    """What a command line says that is refused: on one line, without the frame."""
    done = spark_ext(*arguments)
    assert done.returncode == REFUSED and "Traceback" not in done.stderr and not done.stdout, (arguments, done)
    return " ".join(done.stderr.replace("│", " ").split())


def printed(*arguments: str | Path) -> Any:
    done = spark_ext(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write(state: Path) -> LedgerWriter:
    """A job whose query `daily` has finished and `live` runs in this process."""
    ledger = Ledger(str(state))
    writer = LedgerWriter(ledger, start_incarnation(ledger, "flights"))
    files = ("files", "daily")
    writer.append(
        [
            *(state_row("RUNNING", operator, T0) for operator in ("", "daily", "live")),
            state_row("FINISHED", "daily", END),
            *(epoch(number, "daily") for number in (0, 1, 2, 2)),  # the last one twice, by a writer that was killed
            replace(epoch(0, "live"), input_rows=None),
            *(replace(flag(number, *files), at=END) for number in (1, 2)),
            flag(0, *files, kind="source"),
            flag(0, kind="query", query="daily"),
            checkpoint(1, "final", query="daily"),
            replace(incident(1, T0), operator="live", what="the [network] was slow"),
        ]
    )
    return writer


@pytest.fixture
def state(tmp_path: Path) -> Path:
    write(tmp_path / "state")
    return tmp_path / "state"


def test_status_as_json_and_for_people(state: Path) -> None:
    found = printed("status", state)
    assert (found["job"], found["state"], found["incarnation"], found["alive"]) == ("flights", "RUNNING", 1, True)
    daily, live = found["queries"]
    times = {"since", "committed_at", "last_epoch"}
    nothing: dict[str, Any] = {
        **dict.fromkeys(("bad_rows", "late_rows", "lag_rows"), 0),
        "rule_failures": {},
        "state_rows": None,
    }
    assert {name: value for name, value in daily.items() if name not in times} == {
        "uid": "daily", "state": "FINISHED", "reason": "", "finished": True, "epochs": 3, "rows": 30, **nothing,
        "lag_at": None, "watermark": None, "newest_row": None, "channels_finished": {"files": 2}, "latencies": [],
        "exchange": None, "inboxes": [],
    }  # fmt: skip
    assert (daily["last_epoch"], live["finished"], live["epochs"], live["rows"]) == (2, False, 1, 0)
    assert found["incidents"][0]["what"] == "the [network] was slow"
    assert found["timeline"][0]["outcome"] == ""
    assert list(found) == [
        "job", "state_directory", "state", "incarnation", "lineage", "driver", "alive", "lost", "heartbeat", "silent",
        "queries", "incidents", "timeline", "damage",
    ]  # fmt: skip
    assert found["damage"] == []
    done = spark_ext("status", state)
    assert done.returncode == 0, done.stderr
    assert "flights RUNNING, driver running" in done.stdout
    assert "files: 2" in done.stdout
    assert "the [network] was slow (restart)" in done.stdout
    assert "incarnation 1" in done.stdout


@pytest.mark.parametrize("ended", [True, False], ids=["stopped", "killed"])
def test_status_reads_an_inbox_while_no_job_runs(tmp_path: Path, ended: bool) -> None:
    writer = write(tmp_path / "state")
    reads = {"uid": "in", "role": "source", "format": "http_ingest", "identity": {"path": "orders"}, "options": {}}
    writer.append([definition("live", operators=[reads])])
    if ended:
        writer.end("CANCELED")
    before = {path for path in tmp_path.rglob("*")}
    [found] = printed("status", tmp_path / "state")["queries"][1]["inboxes"]
    assert (found["name"], sum(found["gateways"].values())) == ("orders", 0)
    assert {path for path in tmp_path.rglob("*")} == before
    inbox = Inbox(tmp_path / "state")
    inbox.send("gh", "a", "b")
    lease = Lease(1, "s", 0, "h", 1, "accepting", 150, 140, 47_850, 1_000_000)
    inbox.place.gateway("gh").write(LEASE, lease.to_json())
    [found] = printed("status", tmp_path / "state")["queries"][1]["inboxes"]
    figures = {name: found[name] for name in ("name", "accepted", "acknowledged", "bytes", "max_bytes")}
    assert list(figures.values()) == ["orders", 150, 140, 47_850, 1_000_000] and found["gateways"]["accepting"] == 1
    assert "orders: 1 accepting" in " ".join(spark_ext("status", tmp_path / "state").stdout.split())
    inbox.place.gateway("gh").write("gateway.json", b"damaged")
    assert printed("status", tmp_path / "state")["queries"][1]["inboxes"] == []


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
        return printed("status", state)["silent"], "no heartbeat since" in spark_ext("status", state).stdout

    (row,) = [row for row in Ledger(str(state)).jobs() if row.event == "started"]
    assert row.start_id is not None
    file = state / heartbeat.FOLDER / f"{row.incarnation:010}-{row.start_id:016x}.json"
    assert shown() == (False, False), "it writes none"
    file.parent.mkdir(exist_ok=True)
    for seconds, silent in ((10, False), (120, True)):
        file.write_text(json.dumps({"at": (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat()}))
        assert shown() == (silent, silent)
    file.unlink()


def test_status_is_a_snapshot(tmp_path: Path) -> None:
    writer = write(tmp_path / "state")
    found = read_status(str(tmp_path / "state"))
    assert (found.rows, found.epochs, found.finished, found.ended, found.error) == (30, 4, False, None, "")
    daily = found.query("daily")
    assert daily.sources == (SourceSnapshot(uid="files", finished=True, channels_finished=2, channels_running=None),)
    assert (daily.last_epoch_ms, daily.state_rows) == (5, None)
    assert line(found).plain.splitlines()[1] == (
        "  daily FINISHED  epoch 2  30 rows  5 ms/epoch  channels: 2 finished  end of input"
    )
    writer.append([replace(state_row("FAILED", "live", END), reason="no space left"), state_row("FAILED", since=END)])
    writer.end("FAILED")
    found = read_status(str(tmp_path / "state"))
    assert (found.state, found.error) == (State.FAILED, "no space left")
    assert found.started is not None and found.ended is not None
    assert found.seconds == (found.ended - found.started).total_seconds()


def test_a_state_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "state").append(state_row("SLEEPING", "live", END))
    said = refused("status", tmp_path / "state")
    assert "the ledger has the state 'SLEEPING', which this release does not know" in said


def test_rows_from_before_a_reset_do_not_count(tmp_path: Path) -> None:
    writer = write(tmp_path / "state")
    assert writer.new_lineage("daily", "again") == 2
    found = read_status(str(tmp_path / "state")).query("daily")
    assert (found.state, found.finished, found.epochs, found.channels_finished) == ("CREATED", False, 0, {})
    writer.append([epoch(0, "daily", lineage=2), flag(1, "files", "daily", lineage=2)])
    found = read_status(str(tmp_path / "state")).query("daily")
    assert (found.epochs, found.rows, found.channels_finished) == (1, 10, {"files": 1})
    assert read_status(str(tmp_path / "state")).query("live").epochs == 1


def test_finished_channels_and_epochs_are_listed(state: Path) -> None:
    assert [(row["kind"], row["source"], row["channel"]) for row in printed("finished", state)] == [
        ("query", "", ""), ("source", "files", ""), ("channel", "files", "c1"), ("channel", "files", "c2"),
    ]  # fmt: skip
    shown = spark_ext("finished", state).stdout
    assert "c2" in shown and "2026-01-01 12:00:03.000" in shown
    assert [(row["query"], row["epoch"]) for row in printed("epochs", state)] == [
        ("daily", 0), ("live", 0), ("daily", 1), ("daily", 2),
    ]  # fmt: skip
    assert [row["epoch"] for row in printed("epochs", state, "--query", "daily", "--last", "2")] == [1, 2]
    assert len(spark_ext("epochs", state).stdout.splitlines()) == 1 + 4
    assert "use one of: daily, live" in refused("epochs", state, "--query", "dayly")


def test_checkpoints_are_those_of_the_whole_job(tmp_path: Path) -> None:
    writer = write(tmp_path / "state")
    statuses = [(2, "COMPLETED", "/kept/2"), (3, "FAILED", None), (2, "RELEASED", None)]
    for second, (number, status, path) in enumerate(statuses):
        row = checkpoint(number, status=status, at=T0 + timedelta(seconds=second))
        writer.append(replace(row, reason="full" if status == "FAILED" else "", path=path))
    found = printed("checkpoints", tmp_path / "state")
    assert [(row["checkpoint_id"], row["status"], row["path"]) for row in found] == [
        (2, "COMPLETED", "/kept/2"), (2, "RELEASED", None), (3, "FAILED", None),
    ], "the final checkpoint of a query is not one of the job"  # fmt: skip
    assert [row["checkpoint_id"] for row in printed("checkpoints", tmp_path / "state", "--last", "1")] == [3]
    shown = spark_ext("checkpoints", tmp_path / "state").stdout
    assert "/kept/2" in shown and "full" in shown


@pytest.mark.parametrize("command", ["status", "finished", "epochs", "checkpoints", "incidents"])
def test_a_directory_without_a_job_is_refused_and_not_changed(tmp_path: Path, command: str) -> None:
    (tmp_path / "something").write_text("else")
    for place in (tmp_path, tmp_path / "missing"):
        assert "is not the state directory of a job" in refused(command, place)
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_a_job_is_read_and_controlled_without_spark(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom spark_ext.cli import app\n"
        "for name in ('status', 'finished', 'epochs', 'checkpoints', 'check', 'control'):\n"
        "    for command in (['pause'], ['events'], ['config'], ['seek', 'source:q-in/a', '5', '--yes']):\n"
        "        app([name, sys.argv[1], *(command if name == 'control' else [])], standalone_mode=False)\n"
        "assert 'pyspark' not in sys.modules and 'py4j' not in sys.modules, 'pyspark was loaded'"
    )
    place = states.State(tmp_path / "state").path
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_and_usage() -> None:
    done = subprocess.run([sys.executable, "-m", "spark_ext", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("spark-ext 0.")
    assert refused("status") and refused("status", "x", "--storage", "nonsense")
    assert "'nonsense' is not s3 or KEY=VALUE" in refused("run", __file__, "--storage", "s3", "--storage", "nonsense")


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (errors.ConfigurationError("wrong"), 2), (errors.StateError("damaged"), 2),
        (errors.StorageError("no answer"), 8), (errors.TransientError("the server is starting"), 8),
        (errors.JobFailedError("failed", do="correct the file"), 1), (errors.JobRunningError("another run"), 9),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Exception) else None,
)  # fmt: skip
def test_a_scheduler_can_tell_what_may_be_repeated(
    monkeypatch: pytest.MonkeyPatch, problem: errors.SparkExtError, code: int
) -> None:
    """Not with the code of a configuration that cannot work."""

    def fails() -> None:
        raise problem

    monkeypatch.setattr(cli, "app", fails)
    done = spark_ext("run", "job.py")
    assert done.returncode == code and problem.what in done.stderr and "Traceback" not in done.stderr
    assert (problem.do or "") in done.stderr


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
def test_the_process_ends_with_its_code_despite_native_libraries(end: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS.format(end=end)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "saidcleaned up\n"), done.stderr
