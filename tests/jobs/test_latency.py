"""Latency markers of a job: what is made of the epochs that its queries commit, and of the entries of exchanges."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.functions import udf

import spark_ext as sx
from spark_ext.exchange.arrow.master import ArrowMaster
from spark_ext.exchange.consumers import front_of
from spark_ext.exchange.entries import EntryKind
from spark_ext.exchange.view import ExchangeView
from spark_ext.jobs.latency import LATE, RECORD_EVERY, LatencyMeter
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import LatencyRow
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.latency import Marker
from spark_ext.model.lifecycle import State
from spark_ext.model.offsets import LoggedOffsets, Running, SourceOffset
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.storage import LocalFolder
from spark_ext.views.snapshot import LatencySnapshot, QuerySnapshot
from spark_ext.views.status import read_status
from tests.support.exchanges import Producer
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import failures
from tests.support.waiting import until

GRAPH = JobGraph((QueryNode("a", (), ("x",)), QueryNode("c", (Reader("x", "x-in"),))))


class Run:
    def __init__(self, uid: str, application: str = "", fed: tuple[str, ...] = ()) -> None:
        self.spec = SimpleNamespace(uid=uid, fed=frozenset(fed))
        self.application = application
        self.recent: tuple[tuple[int, LoggedOffsets], ...] = ()
        self.committed = -1
        self.recorded: int | None = None
        self.observer = self

    def commit(self, stamp: int, *offsets: SourceOffset, epoch: int | None = None) -> None:
        self.committed = self.committed + 1 if epoch is None else epoch
        logged = LoggedOffsets(self.committed, {"batchTimestampMs": stamp}, tuple(one.to_json() for one in offsets))
        self.recent = (*self.recent, (self.committed, logged))

    def committed_at(self, epoch: int) -> float | None:
        assert epoch == self.committed
        return None if self.recorded is None else self.recorded / 1_000


def at(position: Any, uid: str = "in", *, new: bool = False) -> SourceOffset:
    return SourceOffset(uid, running={"0": Running(position, begin=0, new=new)})


def front(entry: int, rows: int = 0, *, new: bool = False) -> SourceOffset:
    running = {str(number): Running([entry, rows], begin=[0, 0], new=new) for number in range(2)}
    return SourceOffset("x-in", running=running)


class Bench:
    """A meter whose clock a test sets."""

    def __init__(self, interval: int = 0, *, keep: bool = False) -> None:
        self.now = 1_000
        self.arrived: list[Marker] = []
        self.recorded: list[tuple[str, LatencySnapshot]] = []
        self.meter = LatencyMeter(
            "lab", lambda: GRAPH, interval=interval, keep=keep, arrived=self.arrived.append,
            record=lambda query, one: self.recorded.append((query, one)), clock=lambda: self.now,
        )  # fmt: skip

    def tick(self, now: int, *runs: Run) -> None:
        self.now = now
        self.meter.tick(runs)  # type: ignore[arg-type]

    def ms(self) -> list[tuple[str, int]]:
        return [(marker.query, marker.ms) for marker in self.arrived]


def test_an_epoch_with_rows_is_measured_from_planning_to_commit() -> None:
    bench, run = Bench(), Run("a")
    run.commit(1_010, at(5, new=True))
    bench.tick(1_200, run)
    bench.tick(1_220, run)
    assert bench.ms() == [("a", 190)], "once"
    run.commit(1_230, at(5))
    bench.tick(1_240, run)
    assert bench.ms() == [("a", 190)], "an epoch without rows has no marker"
    run.commit(1_300, at(9))
    bench.tick(1_310, run)
    assert bench.ms() == [("a", 190), ("a", 10)]
    (shown,) = bench.meter.of("a")
    assert (shown.source, shown.ms, shown.hops, shown.way, shown.markers) == ("in", 10, (("a", 10),), (), 2)
    assert shown.at.timestamp() == 1.31 and bench.meter.of("c") == ()


def test_each_source_that_has_read_something_has_its_own() -> None:
    bench, run = Bench(), Run("a")
    run.commit(1_010, at(5, "one", new=True), at(0, "two", new=True), at(3, "three", new=True))
    bench.tick(1_020, run)
    assert {marker.source for marker in bench.arrived} == {"one", "three"}


def test_no_more_than_one_marker_of_a_source_in_an_interval() -> None:
    bench, run = Bench(interval=100), Run("a")
    for number in range(10):
        run.commit(1_010 + 40 * number, at(number + 1, new=number == 0))
        bench.tick(1_015 + 40 * number, run)
    assert [marker.at for marker in bench.arrived] == [1_010, 1_130, 1_250, 1_370]


def test_what_an_earlier_driver_planned_is_not_measured() -> None:
    bench, run = Bench(), Run("a")
    run.commit(300, at(5, new=True))
    run.commit(400, at(7))
    run.commit(1_100, at(9))
    bench.tick(1_150, run)
    assert bench.ms() == [("a", 50)]


def test_an_epoch_whose_beginning_is_not_known_is_not_measured() -> None:
    """Spark has removed what was before it."""
    bench, run = Bench(), Run("a")
    run.commit(1_010, at(70), epoch=7)
    run.commit(1_020, at(90), epoch=9)
    run.committed = 10
    bench.tick(1_100, run)
    run.commit(1_110, at(110), epoch=11)
    bench.tick(1_150, run)
    run.commit(1_200, at(120), epoch=12)
    bench.tick(1_250, run)
    assert bench.ms() == [("a", 50)]


@pytest.mark.parametrize(
    ("recorded", "measured"), [(3_000, [("a", 1_990)]), (None, []), (9_001, []), (-1, [])],
    ids=["by the driver's clock", "unknown", "in the future", "before the look"],
)  # fmt: skip
def test_storage_says_when_a_commit_found_late_was_made(recorded: int | None, measured: list[tuple[str, int]]) -> None:
    """If its clock is not another one: the commit was made between two looks."""
    bench, run = Bench(), Run("a")
    run.commit(1_010, at(5, new=True))
    run.recorded = recorded
    bench.tick(9_000, run)
    assert bench.ms() == measured
    run.commit(9_100, at(6))
    bench.tick(9_000 + LATE, run)
    assert bench.ms() == [*measured, ("a", LATE - 100)], "the driver has just looked"


def linked(folder: Path) -> tuple[Producer, ExchangeView, Bench, Run, Run]:
    """An exchange, a look at it, a meter, and the queries that write and read it."""
    producer = Producer(folder)
    first = Run("a", producer.epoch(0).application)
    return producer, ExchangeView(producer.master), Bench(), first, Run("c", fed=("x-in",))


def test_reading_after_an_unknown_epoch_is_not_counted_again(tmp_path: Path) -> None:
    producer, view, bench, first, second = linked(tmp_path)
    ends = [producer.write(number, 10, 10) + 1 for number in range(4)]
    for number in range(4):
        first.commit(1_010 + number, at(number + 1, new=number == 0))
    second.commit(1_100, front(ends[0], new=True))
    bench.tick(1_200, first, second)
    second.committed = 1
    bench.tick(1_300, first, second)
    second.commit(1_350, front(ends[2]))
    bench.tick(1_400, first, second)
    second.commit(1_450, front(ends[3]))
    bench.tick(1_500, first, second)
    view.look()
    bench.meter.follow({"x": view})
    assert [(query, ms) for query, ms in bench.ms() if query == "c"] == [("c", 190), ("c", 487)]


def test_a_failure_is_logged_once_and_is_none_of_the_job(caplog: pytest.LogCaptureFixture) -> None:
    bench, stranger = Bench(), Run("stranger")
    for number in range(3):
        stranger.commit(1_010, at(number + 1, new=number == 0))
        bench.tick(1_020, stranger)
    assert bench.arrived == [] and caplog.text.count("could not be measured") == 1


def test_what_has_changed_is_recorded_now_and_then() -> None:
    bench, run, other = Bench(keep=True), Run("a"), Run("c")
    run.commit(1_010, at(5, new=True))
    bench.tick(1_020, run, other)
    assert bench.recorded == []
    bench.meter.record()
    bench.meter.record()
    assert [(query, one.ms, one.p99_ms) for query, one in bench.recorded] == [("a", 10, 10)]
    run.commit(1_030, at(6))
    other.commit(1_040, at(1, new=True))
    bench.tick(1_050, run, other)
    bench.tick(1_020 + RECORD_EVERY, run, other)
    assert [(query, one.ms, one.markers) for query, one in bench.recorded[1:]] == [("a", 20, 2), ("c", 10, 1)]


def test_rows_that_wait_in_an_exchange_count(tmp_path: Path) -> None:
    """Of an entry of which a part is read, the rest is waited for."""
    producer, view, bench, first, second = linked(tmp_path)
    producer.register("x-in", "c")
    ends = []
    for number in range(3):
        ends.append(producer.write(number, 10, 10) + 1)
        first.commit(1_010 + 100 * number, at(number + 1, new=number == 0))
        bench.tick(1_060 + 100 * number, first, second)
    assert bench.ms() == [("a", 50)] * 3
    second.commit(1_300, front(ends[0], 3, new=True))
    bench.tick(1_400, first, second)
    assert len(bench.arrived) == 3, "which entries these are is not known yet"
    view.look()
    bench.meter.follow({"x": view})
    assert bench.ms()[3:] == [("c", 390)]
    second.commit(1_500, front(ends[2]))
    bench.tick(1_600, first, second)
    for _ in range(2):
        bench.meter.follow({"x": view})
    assert bench.ms()[3:] == [("c", 390), ("c", 490), ("c", 390)]
    (shown,) = bench.meter.of("c")
    assert (shown.source, shown.way, shown.hops) == ("in", ("x-in",), (("a", 50), ("c", 390)))


def test_an_entry_that_is_written_after_the_look_is_waited_for(tmp_path: Path) -> None:
    producer, view, bench, first, second = linked(tmp_path)
    view.look()
    second.commit(1_050, front(producer.write(0, 10, 10) + 1, new=True))
    bench.tick(1_100, first, second)
    bench.meter.follow({"x": view})
    first.commit(1_010, at(1, new=True))
    bench.tick(1_150, first, second)
    bench.meter.follow({"x": view})
    assert bench.ms() == [("a", 140)]
    view.look()
    bench.meter.follow({"x": view})
    assert bench.ms() == [("a", 140), ("c", 90)], "it had read them before Spark recorded their epoch"


@pytest.mark.slow(15, "starts the workers of two linked queries")
def test_a_query_that_stands_still_makes_the_latency_grow(lab: JobHarness) -> None:
    """A real job: in -> (first) -> x -> (second), which is paused for a second and more while rows wait in x."""
    gate = lab.folder / "gate"
    job = sx.Job(lab.spark, "lab", state=lab.folder / "state", latency="histogram", latency_interval=0, metrics=True)
    x = job.exchange("x", partitions=2)
    job.add("first", x.write(lab.source("in", counts="60", max_rows_per_epoch=20, gate=gate)))
    lab.add(job, x.read("x-in"), query="second", out="out")
    job.start()
    until(lambda: len(lab.numbers()) == 20, "the first epoch has passed both queries")
    until(lambda: bool(job.snapshot().query("second").latencies), "its marker has arrived")
    before = latest(job.snapshot().query("second"))
    assert before.markers == 1 and [query for query, _ in before.hops] == ["first", "second"]
    job.control.pause("query:second", wait=60)
    gate.touch()
    until(lambda: latest(job.snapshot().query("first")).markers == 3, "all rows are in the exchange")
    assert not job.wait(1.2), "they wait there"
    job.control.resume("query:second")
    result = job.await_termination(240)
    assert result.state is State.FINISHED and lab.numbers() == expected(60)

    first, second = latest(result.query("first")), latest(result.query("second"))
    assert (first.source, first.way, first.markers) == ("in", (), 3)
    assert (second.source, second.way, second.markers) == ("in", ("x-in",), 3)
    (_, of_first), (_, of_second) = second.hops
    assert of_first == first.ms and of_second == second.ms >= of_first + 1_000
    assert second.p99_ms is not None and second.p99_ms >= second.ms and first.p50_ms is not None
    # What was measured is not less than what Spark's logs say of the last epoch with rows.
    log = SparkLog(str(lab.checkpoint("first")))
    planned, committed = log.offsets(2), log.committed_at(2)
    assert planned is not None and committed is not None
    assert first.ms >= int(committed * 1_000) - planned.metadata["batchTimestampMs"] - 20 >= -20
    recorded = {query.uid: query.latencies for query in read_status(job.state_directory).queries}
    assert recorded == {query.uid: query.latencies for query in result.queries}
    metrics = job._active.metrics
    assert metrics is not None
    counted = {
        sample.named["query"]: sample.value
        for sample in metrics.samples()
        if sample.metric.name == "spark_ext_latency_seconds"
    }
    assert counted["first"] == 3 and 1 <= counted["second"] <= 3


@pytest.mark.slow(20, "runs three linked queries")
def test_in_a_diamond_each_marker_is_as_old_as_the_logs_say(lab: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real job: in -> (pass) -> x -> (double) -> y; x and y -> (both). Its facts are read again when it has ended."""
    arrived: list[Marker] = []
    count = LatencyMeter._count

    def counted(meter: LatencyMeter, found: Iterable[Marker]) -> None:
        arrived.extend(markers := list(found))
        count(meter, markers)

    monkeypatch.setattr(LatencyMeter, "_count", counted)
    job = sx.Job(lab.spark, "diamond", state=lab.folder / "state", latency="histogram", latency_interval=0)
    x = job.exchange("x", partitions=3, key="n", keep="1 hour")
    y = job.exchange("y", partitions=2, keep="1 hour")
    job.add("pass", x.write(lab.source("in", counts="100,60", max_rows_per_epoch=20)))
    job.add("double", y.write(x.read("to-double")))
    lab.add(job, x.read("x-in", max_rows_per_epoch=15).union(y.read("y-in")), query="both", out="out")
    assert job.run(progress=False).state is State.FINISHED

    logs = {query: SparkLog(str(lab.checkpoint(query))) for query in ("pass", "double", "both")}

    def written(exchange: str) -> dict[int, int]:
        """Number of the entry by epoch of the producer."""
        log = ArrowMaster(LocalFolder(lab.folder / "state" / "exchanges" / exchange), exchange).log
        log.look()
        found = {number: log.entry(number) for number in log.numbers()}
        return {entry.epoch: number for number, entry in found.items() if entry and entry.kind is EntryKind.EPOCH}

    def passed_by(query: str, reader: str, partitions: int, exchange: str) -> dict[int, int]:
        """Epoch of the consumer by epoch of the producer."""
        fronts = {epoch: front_of(logs[query].offsets(epoch), reader, partitions) for epoch in logs[query].commits()}
        return {
            producer: min(epoch for epoch, front in fronts.items() if front is None or front.entry > number)
            for producer, number in written(exchange).items()
        }

    def age(query: str, epoch: int, stamp: int) -> float:
        at = logs[query].committed_at(epoch)
        assert at is not None
        return at * 1_000 - stamp

    doubled, direct, through = (
        passed_by(*of) for of in (("double", "to-double", 3, "x"), ("both", "x-in", 3, "x"), ("both", "y-in", 2, "y"))
    )
    ages: dict[tuple[str, tuple[str, ...], int], float] = {}
    for epoch in written("x"):
        planned = logs["pass"].offsets(epoch)
        assert planned is not None
        stamp = planned.metadata["batchTimestampMs"]
        ages["pass", (), stamp] = age("pass", epoch, stamp)
        ages["double", ("to-double",), stamp] = age("double", doubled[epoch], stamp)
        ages["both", ("x-in",), stamp] = age("both", direct[epoch], stamp)
        ages["both", ("to-double", "y-in"), stamp] = age("both", through[doubled[epoch]], stamp)
    found = {(marker.query, marker.way, marker.at): marker.ms for marker in arrived}
    assert len(arrived) == len(found) and found.keys() == ages.keys()
    assert all(ms >= ages[key] - 20 for key, ms in found.items()), "the driver sees a commit after it was made"


@pytest.mark.core
@pytest.mark.slow(12, "restarts a query")
def test_an_epoch_that_is_repeated_keeps_its_beginning(lab: JobHarness) -> None:
    flag = str(lab.folder / "failed")

    @udf("boolean")
    def looked_up(n):  # type: ignore[no-untyped-def]
        import os

        if not os.path.exists(flag):  # noqa: PTH110
            with open(flag, "w"):
                pass
            raise ConnectionRefusedError(111, "Connection refused")
        return n >= 0

    rows = lab.source("in", counts="5").where(looked_up("n"))
    job = lab.job(rows, latency="latest", latency_interval=0, restart_backoff="1 s")
    result = job.run(progress=False)
    assert result.state is State.FINISHED and lab.numbers() == expected(5)
    assert len(failures(job)) == 1
    found = latest(result.query("q"))
    assert (found.markers, found.p50_ms) == (1, None) and found.ms >= 1_000


def test_a_job_that_does_not_ask_for_markers_has_none(lab: JobHarness) -> None:
    job = lab.job(lab.source("in", counts="5"))
    assert job.run(progress=False).query("q").latencies == ()
    assert Ledger(job.state_directory).table(LatencyRow).rows() == []


def latest(query: QuerySnapshot) -> Any:
    (found,) = query.latencies
    return found
