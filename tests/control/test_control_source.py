"""The source `control`: the events of its job as rows, each once, the same on a replay."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ext import masking
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Request
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.ledger import Ledger
from spark_ext.sources import control_events
from spark_ext.sources.contract import Channel, Committed, Limit
from spark_ext.sources.control_events import CHANNEL, FOLDER, ControlEvents, EventRows
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration
from tests.control.states import Sent, State
from tests.control.tasks import Epochs
from tests.support.jobs import JobHarness
from tests.support.waiting import until


def accept(state: Path, *requests: Request) -> None:
    ControlLog(Ledger(str(state))).accept(requests)


def note(number: int) -> Request:
    return Request("broadcast", value={"type": "note", "value": number}, requested_by="tests", origin="python")


class Planned:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.state = State(folder / "state").folder
        self.epochs = Epochs(folder)
        place = folder / "registry"
        monkeypatch.setenv(registry.VARIABLE, str(place))
        # Each look reads the ledger.
        monkeypatch.setattr(control_events, "LOOK_EVERY", 0)
        mine = Registration("e", "source", "orders", "id", "q", str(self.state), str(self.epochs.checkpoint), 1, 1)
        registry.publish([mine], place)
        self.source = ControlEvents({"uid": "e", **options})
        (self.channel,) = self.source.discover()

    def advance(self, start: Any, rows: int | None = None) -> Any:
        return self.source.advance(self.channel, start, Limit(rows)).end

    def read(self, start: Any, end: Any) -> list[dict[str, Any]]:
        with self.epochs.task(0):
            found = ControlEvents({"uid": "e"}).read(Channel(CHANNEL, None), start, end)
            return [row for batch in found for row in batch.to_pylist()]

    @property
    def files(self) -> list[str]:
        return sorted(SparkLog(str(self.epochs.checkpoint)).names(FOLDER))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    return Planned(tmp_path, monkeypatch)


def test_rows_say_all_of_an_event_and_are_read_from_a_file_alone(job: Planned) -> None:
    first = job.channel.begin
    assert job.advance(first) == first
    accept(job.state, note(1), Request("pause", "query:q"), Request("set_config", value={"key": "k", "value": [1]}))
    end = job.advance(first)
    assert job.advance(end) == end
    # Events that are removed from the ledger are read all the same.
    (job.state / "ledger").rename(job.state / "gone")
    rows = job.read(first, end)
    assert [(row["sequence"], row["kind"], row["target"]) for row in rows] == [
        (1, "broadcast", "job"), (2, "pause", "query:q"), (3, "set_config", "job"),
    ]  # fmt: skip
    assert [row["value"] for row in rows] == ['{"type": "note", "value": 1}', None, '{"key": "k", "value": [1]}']
    assert (rows[0]["delivery"], rows[0]["requested_by"], rows[0]["origin"]) == ("immediate", "tests", "python")
    assert rows[0]["at"].tzinfo is not None and len({row["event_id"] for row in rows}) == 3


def test_limits_cut_between_events(job: Planned) -> None:
    accept(job.state, *map(note, range(5)))
    at, read = job.channel.begin, []
    while (end := job.advance(at, rows=2)) != at:
        read.append([row["sequence"] for row in job.read(at, end)])
        at = end
    assert read == [[1, 2], [3, 4], [5]]
    assert job.source.latest(job.channel) == {"sequence": 5}


def test_a_plan_that_is_made_again_gives_the_same_position(job: Planned) -> None:
    accept(job.state, note(1))
    end = job.advance(job.channel.begin)
    assert ControlEvents({"uid": "e"}).advance(job.channel, job.channel.begin, Limit()).end == end
    assert len(job.files) == 1


def test_only_the_kinds_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Planned(tmp_path, monkeypatch, kinds="pause, resume")
    accept(job.state, note(1), Request("pause"), note(2), Request("resume"), note(3))
    end = job.advance(job.channel.begin)
    assert [row["kind"] for row in job.read(job.channel.begin, end)] == ["pause", "resume"]
    assert job.advance(end) == end
    with pytest.raises(ConfigurationError, match="pauses"):
        ControlEvents({"uid": "e", "kinds": "pauses"})


def test_files_go_once_no_replay_needs_them(job: Planned) -> None:
    accept(job.state, note(1), note(2))
    first = job.advance(job.channel.begin, rows=1)
    second = job.advance(first)
    assert len(job.files) == 2
    job.source.on_epoch_committed(Committed({CHANNEL: first}, (), final=False))
    assert job.files == [f"{second['file']}.jsonl"]
    assert [row["sequence"] for row in job.read(first, second)] == [2]
    with pytest.raises(StateError, match="is missing") as gone:
        job.read(job.channel.begin, first)
    assert "backup" in gone.value.do


def test_a_channel_that_is_sent_back_reads_events_again(job: Planned) -> None:
    accept(job.state, note(1), note(2), note(3))
    end = job.advance(job.channel.begin)
    assert job.advance(end) == end
    back = job.source.seek(job.channel, end, 1)
    assert [row["sequence"] for row in job.read(back, job.advance(back))] == [2, 3]
    for wrong in (-1, True, "x", None, {"sequence": 1.5}):
        with pytest.raises(ConfigurationError, match="position"):
            job.source.seek(job.channel, end, wrong)


def test_secrets_are_masked(job: Planned) -> None:
    masking.remember("correct-horse-battery")
    accept(job.state, Request("set_config", value={"key": "dsn", "value": "x:correct-horse-battery@h"}))
    end = job.advance(job.channel.begin)
    assert "correct-horse-battery" not in json.dumps(job.read(job.channel.begin, end), default=str)


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    rows = EventRows(str(State(tmp_path / "state").folder), (), lambda: now[0])
    accept(tmp_path / "state", note(1))
    assert len(rows.after(0)) == 1
    accept(tmp_path / "state", note(2))
    assert len(rows.after(0)) == 1
    now[0] = 0.2
    assert [row["sequence"] for row in rows.after(0)] == [1, 2]
    assert [row["sequence"] for row in rows.after(1)] == [2]


def test_it_is_refused_outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    with pytest.raises(StateError, match="outside of a job") as refused:
        ControlEvents({"uid": "e"}).discover()
    assert "job.run" in refused.value.do


def test_a_job_reads_its_own_events_once_over_a_restart(spark: SparkSession, lab: JobHarness) -> None:
    def start() -> Any:
        frame = spark.readStream.format("control").options(uid="e", kinds="broadcast").load()
        return lab.job(frame.selectExpr("'' as channel", "sequence as n", "value")).start()

    job = start()
    send = Sent(lab.folder / "state")
    sent = [send("broadcast", {"type": "a"})]
    until(lambda: lab.rows(), "the first event is a row")
    job.stop()
    sent.append(send("broadcast", {"type": "b"}))
    job = start()
    send("set_config", {"key": "k", "value": 1})
    sent.append(send("broadcast", {"type": "c"}))
    until(lambda: len(lab.rows()) == 3, "all events are rows")
    assert job.drain(timeout=60).finished
    assert [row["n"] for row in lab.rows()] == sent
    assert [json.loads(row["value"])["type"] for row in lab.rows()] == ["a", "b", "c"]
