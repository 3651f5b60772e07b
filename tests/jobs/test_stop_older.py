"""A takeover in one session stops what the older start runs there: within a time, and a failure undoes the start."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ext.errors import SparkExtError, StorageError
from spark_ext.jobs import active_run
from spark_ext.jobs.composition import Composition
from spark_ext.jobs.job import Job
from spark_ext.jobs.starting.plan import StartOptions
from spark_ext.jobs.starting.start import start_job, stop_older
from spark_ext.ledger import Ledger, start_incarnation
from spark_ext.model.lifecycle import State
from spark_ext.settings import JobSettings
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.session import registry
from tests.jobs.test_coordinator import FakeJob
from tests.queries.fakes import Bench
from tests.support.coordinated import END

Start = Callable[..., Any]


class Hanging:
    """A stop that does not return until the test ends."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        self.gate.wait()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    stop = Hanging()
    yield stop
    stop.gate.set()


def never() -> bool:
    return False


def test_all_are_stopped_though_one_takes_its_time(tmp_path: Path, hanging: Hanging) -> None:
    stopped: list[str] = []

    def other() -> None:
        assert hanging.begun.wait(END)
        hanging.gate.set()
        stopped.append("b")

    assert stop_older({}, Bench(tmp_path).context, never)
    assert stop_older({"a": hanging, "b": other}, Bench(tmp_path).context, never)
    assert stopped == ["b"], "each on a thread of its own"


class Session:
    """As much of a Spark session as a start without new queries needs, with a query of an older incarnation."""

    def __init__(self, folder: Path, stop: Callable[[], object]) -> None:
        self.listeners: list[object] = []
        self.sparkContext = SimpleNamespace(
            environment={registry.VARIABLE: str(folder / "registry")}, applicationId="app"
        )
        older = SimpleNamespace(place=f"file:{folder}/state/queries/q/checkpoint", stop=stop)
        self.streams = SimpleNamespace(
            active=[SimpleNamespace(place="file:/elsewhere/queries/q/checkpoint", stop=pytest.fail), older],
            addListener=self.listeners.append,
            removeListener=self.listeners.remove,
        )


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a job without queries over an older incarnation, whose query stops in the given way."""
    monkeypatch.setattr(CLASSIC, "jvm_pid", lambda _: 0)
    monkeypatch.setattr(CLASSIC, "diagnosis", lambda _: None)
    monkeypatch.setattr(CLASSIC, "checkpoint", lambda query: query.place)
    start_incarnation(ledger_in(tmp_path), "lab")

    def start(stop: Callable[[], object], within: int = 300_000, **given: Any) -> Any:
        session: Any = Session(tmp_path, stop)
        settings = JobSettings(start_timeout=within)
        parts = Composition(session, "lab", str(tmp_path))
        return start_job(session, "lab", ledger_in(tmp_path), parts, settings, StartOptions(takeover=True), **given)

    return start


def ledger_in(folder: Path) -> Ledger:
    return Ledger(str(folder / "state"))


def assert_undone(folder: Path) -> None:
    """The start has ended in the ledger, and in this process."""
    assert [(row.incarnation, row.event) for row in ledger_in(folder).jobs()][1:] == [(2, "started"), (2, "ended")]
    assert start_incarnation(ledger_in(folder), "lab").number == 3


def test_a_start_whose_older_query_does_not_stop_is_undone(tmp_path: Path, start: Start, hanging: Hanging) -> None:
    with pytest.raises(StorageError, match="'stop of query 'q' of an older start' of the start did not end"):
        start(hanging, within=100)
    assert_undone(tmp_path)


def test_a_start_whose_older_query_cannot_be_stopped_is_undone(tmp_path: Path, start: Start) -> None:
    def fail() -> None:
        raise RuntimeError("py4j: an error occurred")

    with pytest.raises(SparkExtError, match=r"the job could not be started: .*RuntimeError: py4j"):
        start(fail)
    assert_undone(tmp_path)


def test_a_start_that_is_interrupted_there_is_undone(tmp_path: Path, start: Start, hanging: Hanging) -> None:
    """By Ctrl-C."""

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(hanging, stopping=interrupted)
    assert_undone(tmp_path)


def test_a_start_that_is_stopped_there_starts_nothing(tmp_path: Path, start: Start, hanging: Hanging) -> None:
    announced: list[Any] = []
    started = start(hanging, stopping=hanging.begun.is_set, announce=lambda *given: announced.extend(given))
    assert announced[1] is started and started.stopping
    assert started.join(END)
    assert [row.event for row in ledger_in(tmp_path).jobs()] == ["started", "started", "ended"]


def test_a_stop_reaches_a_start_that_has_no_coordinator_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, entered = FakeJob(tmp_path), threading.Event()

    def start_fake(*_: Any, announce: Any, stopping: Callable[[], bool], **__: Any) -> None:
        entered.set()
        assert not stop_older({"q": threading.Event().wait}, fake.a.context, stopping)
        announce(fake.a.context, fake.coordinator)
        fake.coordinator.start()

    monkeypatch.setattr(active_run, "start_job", start_fake)
    spark: Any = None
    job = Job(spark, "lab", state=tmp_path / "state")
    job._parts.specs.append(fake.a.spec)
    start = threading.Thread(target=job.start)
    start.start()
    assert entered.wait(END)
    assert job.stop(END).state is State.CANCELED
    start.join(END)
