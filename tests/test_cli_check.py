"""`spark-ext check`: of jobs that run, that were killed and that cannot be read; and whom it notifies."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import spark_ext as sx
from spark_ext.commands.check_notify import GONE
from spark_ext.incidents.registry import load
from spark_ext.incidents.types import IncidentState
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.heartbeat import Heartbeat
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.incidents import Notified
from spark_ext.ledger.schema import EpochRow, IncidentRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.testing.children import Child
from spark_ext.testing.waiting import until
from spark_ext.views.page.document import page
from spark_ext.views.page.facts import FactsReader
from tests.incidents.made import change
from tests.ledger.rows import state
from tests.listeners.endpoint import Endpoint, serving
from tests.test_cli import refused, spark_ext

ALERT = "alerts:\n  - {rule: availability below 99 % over 1 h, labels: {type: SYSTEM}}\n"


class Running:
    """The state directory of a job whose driver is this process, and runs since an hour ago."""

    def __init__(self, folder: Path, name: str = "shop", **silent: float) -> None:
        self.state = str(folder / name)
        self.now = datetime.now(timezone.utc)
        begin = self.now - timedelta(hours=1)
        ledger = Ledger(self.state)
        incarnation = start_incarnation(ledger, name, now=begin)
        self.writer = LedgerWriter(ledger, incarnation)
        self.writer.append(state("RUNNING", since=begin))
        self.behind = WriteBehind(self.writer, name)
        self.heartbeat = Heartbeat(ledger.uri, incarnation)
        self.heartbeat.beat(self.now - timedelta(**(silent or {"seconds": 1})))

    def end(self, reason: str) -> None:
        self.writer.append(state(reason, since=self.now))
        self.writer.end(reason)
        self.heartbeat.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for place in tmp_path.iterdir():
        forget(str(place), 1)


def checked(*arguments: str | Path) -> tuple[int, list[dict[str, Any]]]:
    done = spark_ext("check", *arguments, "--json")
    return done.returncode, json.loads(done.stdout)


def test_one_line_and_one_exit_code_for_all_jobs(folder: Path) -> None:
    well = Running(folder, "well")
    silent = Running(folder, "silent", minutes=10)
    one = spark_ext("check", well.state)
    assert one.returncode == 0 and one.stdout.startswith("ok  well  RUNNING, last alive ")
    both = spark_ext("check", well.state, silent.state)
    first, second = both.stdout.splitlines()
    assert both.returncode == 1 and first.startswith("ok  well")
    assert second.startswith("WRONG  silent  DOWN") and "the driver is lost: no heartbeat since " in second
    assert spark_ext("check", silent.state, "--max-silence", "1 hour").returncode == 0


def test_one_that_cannot_be_read_hides_no_other(folder: Path) -> None:
    silent = Running(folder, "silent", minutes=10)
    done = spark_ext("check", folder / "nothing", silent.state)
    unknown, wrong = done.stdout.splitlines()
    assert done.returncode == 2 and wrong.startswith("WRONG  silent")
    assert unknown.startswith("UNKNOWN  ") and "is not the state directory of a job" in unknown
    code, (nothing, _) = checked(folder / "nothing", silent.state)
    assert code == 2 and nothing["well"] is None and "not the state directory" in nothing["error"]


def test_availability_by_class_and_by_the_rules_of_a_file(folder: Path) -> None:
    silent = Running(folder, minutes=6)
    loose = ("--max-silence", "1 min", "--window", "1 h")
    _, (one,) = checked(silent.state, *loose)
    assert one["availability"] == pytest.approx(0.9, abs=0.01) and one["rules"] == []
    for percent, label, low in ((99, "SYSTEM", True), (99, "NETWORK", False), (80, "SYSTEM", False)):
        _, (one,) = checked(silent.state, *loose, "--availability", str(percent), "--label", f"type={label}")
        assert [rule["low"] for rule in one["rules"]] == [low]
        assert [finding["kind"] for finding in one["findings"]] == ["driver_lost", *["unavailability"] * low]
    rules = folder / "incidents.yaml"
    rules.write_text(ALERT)
    _, (one,) = checked(silent.state, *loose, "--incidents", rules)
    assert [rule["rule"] for rule in one["rules"]] == ["availability below 99 % over 1 h, of type=SYSTEM"]
    assert one["findings"][1]["severity"] == "CRITICAL"


@pytest.mark.parametrize("end", ["", "CANCELED", "FAILED", "FINISHED"])
def test_check_timeline_and_page_have_one_availability(folder: Path, end: str) -> None:
    """An hour with six minutes of recovery; a job that has reached its end has none."""
    running, failed = Running(folder), datetime.now(timezone.utc) - timedelta(minutes=30)
    running.writer.append(state("RESTARTING", since=failed))
    running.writer.append(state("RUNNING", since=failed + timedelta(minutes=6)))
    if end:
        running.end(end)
    _, (health,) = checked(running.state)
    told = json.loads(spark_ext("timeline", running.state, "--json").stdout)
    timeline, began = told["availability"], told["incarnations"][0]["since"]
    assert began == told["since"] == health["since"], "the job is younger than a day"
    document = page(FactsReader(Ledger(running.state)).read(), datetime.now(timezone.utc))["timeline"]["availability"]
    texts = [spark_ext(command, running.state).stdout for command in ("check", "timeline")]
    if end == "FINISHED":
        assert health["availability"] is timeline is document is None
        assert not any("availab" in text for text in texts)
        return
    for found in (health["availability"], timeline, document["1d"], document["all"]):
        assert found == pytest.approx(0.9, abs=0.005)
    assert "% of 60 min" in texts[0] and f"availability since {began[:19].replace('T', ' ')} UTC: " in texts[1]


@pytest.mark.parametrize("end", ["FAILED", "CANCELED", ""], ids=["failed", "stopped", "lost"])
def test_check_status_and_page_have_one_state_after_a_refused_start(folder: Path, end: str) -> None:
    running = Running(folder)
    if end:
        running.end(end)
    ledger = Ledger(running.state)
    again = LedgerWriter(ledger, start_incarnation(ledger, "shop", takeover=True))

    def states() -> set[str]:
        document = page(FactsReader(Ledger(running.state)).read(), datetime.now(timezone.utc))
        status = json.loads(spark_ext("status", running.state, "--json").stdout)
        return {checked(running.state)[1][0]["state"], status["state"], document["job"]["state"]}

    assert states() == {"CREATED"}, "it starts"
    again.end("the start was refused")
    assert states() == {end or "FAILED"}


def test_a_job_that_has_failed_and_open_incidents(folder: Path) -> None:
    running = Running(folder)
    running.behind.incident("job 'shop', query 'q'", "failure", "it broke", "stopped", labels={"type": "USER_CODE"})
    running.behind.incident("job 'shop'", "checkpoint", "given up", "aborted")
    running.behind.flush()
    code, (one,) = checked(running.state)
    assert code == 1 and [finding["kind"] for finding in one["findings"]] == ["incident"] and one["runs"]
    assert checked(running.state, "--severity", "critical")[0] == 0
    assert len(checked(running.state, "--severity", "warning")[1][0]["findings"]) == 2
    running.end("FAILED")
    code, (one,) = checked(running.state)
    assert code == 1 and one["state"] == "FAILED"
    assert [finding["kind"] for finding in one["findings"]] == ["failed"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--availability", "0"), "not above 0"), (("--availability", "101"), "Invalid value for '--availability'"),
        (("--window", "soon"), "not a duration"), (("--window", "0"), "not a duration"),
        (("--max-silence", "-1 s"), "negative"), (("--label", "type=SYSTEM"), "requires --availability"),
        (("--notify",), "a file that defines listeners"), (("--remember", "file"), "requires --notify"),
        (("--severity", "bad"), "not one of"), (("--incidents", "nowhere.yaml"), "cannot be read"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(folder: Path, options: tuple[str, ...], says: str) -> None:
    assert says in refused("check", Running(folder).state, *options)


def listening(folder: Path, to: Endpoint) -> Path:
    file = folder / "incidents.yaml"
    file.write_text(f"{ALERT}listeners:\n  - {{use: webhook, options: {{url: '{to.url}', give_up_after: 1 s}}}}\n")
    return file


def notices(to: Endpoint) -> list[tuple[str, str, str]]:
    found = [json.loads(body) for _, body in to.requests]
    to.requests.clear()
    return sorted((one["incident"]["type"], one["new"], one["cause"]) for one in found)


def test_listeners_hear_only_once_what_a_check_remembers(folder: Path) -> None:
    silent = Running(folder, minutes=30)
    with serving() as to:
        notify = (silent.state, "--notify", "--incidents", listening(folder, to))
        opened = [("driver_lost", "OPEN", ""), ("unavailability", "OPEN", "")]
        remember = (*notify, "--remember", folder / "known.json")
        for given, expected in ((notify, opened), (notify, opened), (remember, opened), (remember, [])):
            assert (spark_ext("check", *given).returncode, notices(to)) == (1, expected)
        silent.heartbeat.beat()
        for expected in ([("driver_lost", "RESOLVED", GONE), ("unavailability", "RESOLVED", GONE)], []):
            assert (spark_ext("check", *remember).returncode, notices(to)) == (0, expected)
            assert json.loads((folder / "known.json").read_text()) == {}


def test_what_could_not_be_delivered_is_not_remembered(folder: Path) -> None:
    silent = Running(folder, minutes=30)
    with serving([400, 400]) as to:
        given = (silent.state, "--notify", "--incidents", listening(folder, to), "--remember", folder / "known.json")
        done = spark_ext("check", *given)
        assert done.returncode == 1 and "could not notify of everything: webhook" in done.stderr
        assert not (folder / "known.json").exists()
        notices(to)
        assert spark_ext("check", *given).returncode == 1
        assert len(notices(to)) == 2 and (folder / "known.json").exists()


def test_incidents_of_a_job_that_runs_are_left_to_its_driver(folder: Path) -> None:
    running = Running(folder)
    running.behind.incident("job 'shop', query 'q'", "failure", "it broke", "restart 1", labels={"type": "NETWORK"})
    running.behind.flush()
    with serving() as to:
        given = (running.state, "--notify", "--incidents", listening(folder, to))
        assert (spark_ext("check", *given).returncode, notices(to)) == (1, [])
        running.end("FAILED")
        assert (spark_ext("check", *given).returncode, notices(to)) == (1, [("failure", "OPEN", "")])


def test_a_check_does_not_repeat_what_a_driver_has_told_the_same_listeners(folder: Path) -> None:
    running = Running(folder)
    incident = running.behind.incident("job 'shop', query 'q'", "failure", "it broke", "stopped")
    running.behind.flush()
    running.end("FAILED")
    with serving() as to:
        file = listening(folder, to)
        given = (running.state, "--notify", "--incidents", file, "--remember", folder / "known.json")
        driver, other = Notified(running.state, load(str(file)).listeners_id), Notified(running.state, "other")
        other.take(change(incident))
        assert (spark_ext("check", *given).returncode, notices(to)) == (1, [("failure", "OPEN", "")])
        driver.take(change(incident))
        assert (spark_ext("check", *given[:-2]).returncode, notices(to)) == (1, [])
        # The next start resolves it, and says so.
        running.behind.incidents.resolve(incident, "over")
        running.behind.flush()
        running.writer.append(state("CANCELED", since=running.now))
        driver.take(change(incident, IncidentState.RESOLVED, IncidentState.OPEN))
        spark_ext("check", *given)
        assert incident not in (folder / "known.json").read_text()
        assert [one for one in to.requests if incident.encode() in one[1]] == []


def test_a_notice_that_something_is_over_has_no_age(folder: Path) -> None:
    running = Running(folder)
    running.end("FAILED")
    with serving() as to:
        given = (running.state, "--notify", "--incidents", listening(folder, to), "--remember", folder / "known.json")
        spark_ext("check", *given)
        ledger = Ledger(running.state)
        again = LedgerWriter(ledger, start_incarnation(ledger, "shop", takeover=True))
        again.append(replace(state("RUNNING"), incarnation=2))
        spark_ext("check", *given)
        opened, over = (json.loads(body) for _, body in to.requests)
    assert (opened["new"], over["new"]) == ("OPEN", "RESOLVED")
    said = f"the job has FAILED at {ended_at(running):%Y-%m-%d %H:%M:%S} UTC"
    assert opened["incident"]["what"] == over["incident"]["what"] == said


def ended_at(running: Running) -> datetime:
    return next(row.at for row in Ledger(running.state).jobs() if row.event == "ended")


def test_a_file_that_it_has_not_written_is_refused(folder: Path) -> None:
    silent = Running(folder, minutes=30)
    with serving() as to:
        (folder / "known.json").write_text('{"a": {"b": {"type": "x"}}}')
        given = (silent.state, "--notify", "--incidents", listening(folder, to), "--remember", folder / "known.json")
        done = spark_ext("check", *given)
        assert done.returncode == 2 and "cannot be read: KeyError" in done.stderr
        assert notices(to) == []


def drive(folder: Path) -> None:
    """Run a job, and kill this process when it has committed some epochs."""
    spark = sx.session("killed", master="local[1]", conf={"spark.ui.enabled": "false"})
    rows = spark.readStream.format("datagen").option("uid", "in").option("rows_per_second", 100).load()
    job = sx.Job(spark, "shop", state=folder / "state", heartbeat="200 ms", interval="100 ms")
    job.add("load", rows.writeStream.format("files_2pc").option("uid", "out").option("path", str(folder / "out")))
    job.start()
    ledger = Ledger(job.state_directory)
    until(lambda: len(ledger.table(EpochRow).rows()) >= 2, "epochs are written", 60)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow(15, "starts a driver with its JVM")
def test_a_job_that_was_killed_alerts_although_no_driver_runs(tmp_path: Path) -> None:
    with Child(drive, tmp_path) as child:
        said = child.wait()
        assert child.poll() == -signal.SIGKILL, said
    shop = tmp_path / "state"
    assert not [row for row in Ledger(str(shop)).table(IncidentRow).rows() if row.type == "driver_lost"]
    until(lambda: checked(shop)[1][0]["availability"] < 0.999, "it is down for long enough", 60)
    given = (shop, "--availability", "99.99", "--label", "type=SYSTEM")
    with serving() as to:
        done = spark_ext("check", *given, "--notify", "--incidents", listening(tmp_path, to))
        assert done.returncode == 1 and done.stdout.startswith("WRONG  shop  DOWN, last alive ")
        assert ("driver_lost", "OPEN", "") in notices(to)
    code, (one,) = checked(*given)
    assert (code, one["runs"], one["state"]) == (1, False, "DOWN")
    assert [finding["kind"] for finding in one["findings"]] == ["driver_lost", "unavailability"]
