"""The source `exchange` and the sink that feeds it, without Spark: plans, ends, refusals, and a full exchange."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from spark_ext.errors import ConfigurationError, DataError, OffsetError, StateError
from spark_ext.exchange import consumers, decisions
from spark_ext.exchange.arrow import arrow_parts
from spark_ext.exchange.arrow.log import ArrowLog
from spark_ext.exchange.consumers import CommittedFront, Consumer, Fill
from spark_ext.exchange.positions import Front, rows_before
from spark_ext.model.commits import FenceMark
from spark_ext.model.offsets import Running, SourceOffset
from spark_ext.model.pressure import Hold, Level
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.exchange_2pc import ExchangeSink
from spark_ext.sources import exchange
from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.exchange import ExchangeSource
from spark_ext.sources.runtime.planner import NoLedger, Planner
from spark_ext.spark.session import registry
from spark_ext.spark.session.hold_notes import noted_hold
from spark_ext.storage import LocalFolder
from spark_ext.testing.source_kit import drive
from tests.exchange.exchange_kit import Producer, rows, visible
from tests.queries.fakes import FakeQuery
from tests.sources.memory import FakeLedger, Log, registration


@pytest.fixture
def producer(tmp_path: Path) -> Producer:
    made = Producer(tmp_path / "e")
    made.start()
    return made


def source(producer: Producer, **options: object) -> ExchangeSource:
    given = {"uid": "s", "path": producer.options["path"]}
    return ExchangeSource({**given, **{name: str(value) for name, value in options.items()}})


def planner(producer: Producer, **options: object) -> Planner:
    return Planner(source(producer, **options), None, NoLedger())


def read(producer: Producer, log: Log) -> list[int]:
    found = []
    for epoch in log.read():
        for piece in epoch:
            for batch in source(producer).read(Channel(piece.channel, None, piece.data), piece.start, piece.end):
                found += batch.column("id").to_pylist()
    return sorted(found)


def release(producer: Producer, below: int, count: int) -> None:
    master, mark = producer.parts.master, FenceMark(producer.incarnation, producer.incarnation + 100)
    master.log.append(lambda state: decisions.release_entry(state, below, count, mark, "e", 0), "1")
    master.delete_released()


@pytest.mark.parametrize("count", [4, 0])
def test_a_seal_finishes_all_channels_in_sequence(producer: Producer, count: int) -> None:
    producer.write(rows(0, count, partition=1), barrier=1)
    log, running = Log(), planner(producer)
    log.plan(running)
    assert sorted(log.offsets[-1].running) == ["0", "1", "2"], "all are in progress, with rows or without"
    assert log.plan(running) is None
    producer.seal()
    assert log.plan(running) is not None
    end = log.offsets[-1]
    assert (end.ended, end.drained, end.running, end.sequence) == (True, False, {}, 3)
    assert [finish.sequence for finish in end.finished] == [1, 2, 3]
    assert {finish.channel for finish in end.finished} == {"0", "1", "2"}
    assert log.plan(running) is None and log.plan(planner(producer)) is None


def test_a_drain_does_not_end_it_and_the_seal_does(producer: Producer) -> None:
    producer.write(rows(0, 4))
    ledger = FakeLedger()
    ledger.accept("drain", "job", sequence=3)
    log, running = Log(), Planner(source(producer, max_rows_per_epoch=2), registration(), ledger)
    for _ in range(2):
        assert log.plan(running) is not None
        assert not log.offsets[-1].ended and log.offsets[-1].control == 3
    assert log.plan(running) is None
    producer.write(rows(4, 5))
    producer.seal()
    assert log.plan(running) is not None
    assert log.offsets[-1].ended and not log.offsets[-1].drained
    assert read(producer, log) == list(range(5))


@pytest.mark.parametrize("kind", ["arrow", "delta"])
def test_an_offset_carries_the_watermark_of_its_producer(tmp_path: Path, kind: str) -> None:
    """A source plans an epoch for a watermark only if something above takes it over."""
    producer = Producer(tmp_path / "w", kind=kind)
    producer.start()

    def planned(passes: bool) -> Planner:
        return Planner(source(producer, kind=kind), registration(passes=passes), FakeLedger())

    asks, asks_not = (Log(), planned(True)), (Log(), planned(False))
    producer.write(rows(0, 4))  # as it was written before entries had watermarks
    assert [log.plan(running) is None for log, running in (asks, asks_not)] == [False, False]
    producer.write(watermark=70)
    producer.start()
    producer.write(watermark=50)
    assert [log.plan(running) is None for log, running in (asks, asks_not)] == [False, True]
    assert asks[0].offsets[-1].watermark == 70
    log = asks[0]
    assert log.plan(planned(True)) is None, "neither does a new planner, for what is known"
    producer.write(rows(4, 8), watermark=90)
    small = Planner(source(producer, kind=kind, max_rows_per_epoch=3), registration(passes=True), FakeLedger())
    assert log.plan(small) and log.offsets[-1].watermark == 70, "rows of the entry are still to be read"
    assert log.plan(small) and log.offsets[-1].watermark == 90
    assert asks_not[0].plan(asks_not[1]) and asks_not[0].offsets[-1].watermark == 0


def test_restarts_between_epochs_of_a_growing_one_lose_no_row(producer: Producer) -> None:
    def grow(epoch: int) -> None:
        if epoch < 8:
            if epoch == 4:
                producer.start()
            producer.write(rows(epoch * 5, epoch * 5 + 5), barrier=epoch if epoch % 3 == 0 else None)
        elif epoch == 8:
            producer.seal()

    given = {"uid": "s", "path": producer.options["path"]}
    small = [{"max_rows_per_epoch": "7"}, {"max_bytes_per_epoch": "1"}, {"readers": "1"}]
    grow(0)
    # The source never waits: before each of its epochs there is a new entry.
    trace = drive(ExchangeSource, given, limits=small, between=lambda epoch: grow(epoch + 1), crash=0.5)
    assert sorted(trace.all_rows().column("id").to_pylist()) == list(range(40))
    assert trace.ended


def test_a_reader_that_begins_behind_deletions_reads_the_rest(producer: Producer) -> None:
    producer.write(rows(900, 910))
    release(producer, 2, 10)
    producer.start(anew=True)
    producer.write(rows(0, 5))
    producer.seal()
    log, running = Log(), planner(producer, max_rows_per_epoch=3)
    while log.plan(running) is not None:
        running = planner(producer, max_rows_per_epoch=3)
    assert read(producer, log) == list(range(5))


def test_a_reader_of_rows_that_were_released_is_refused(producer: Producer) -> None:
    producer.write(rows(0, 3))
    log = Log()
    log.plan(planner(producer))
    producer.write(rows(3, 6))
    producer.write(rows(6, 9))
    release(producer, 4, 9)
    with pytest.raises(StateError, match="the first 9 rows of the exchange have been released"):
        planner(producer).next(SourceOffset("s"))
    with pytest.raises(OffsetError, match="entries 2 to 3 of the exchange have been released"):
        planner(producer).next(log.offsets[-1])


def test_an_exchange_made_anew_is_neither_planned_nor_read(producer: Producer, tmp_path: Path) -> None:
    """By a new planner, by one that runs, or by a task whose epoch is replayed after a restart, without a plan."""
    producer.write(rows(0, 3))
    log, running = Log(), planner(producer)
    log.plan(running)
    shipped = pickle.dumps(source(producer))
    (tmp_path / "e").rename(tmp_path / "old")
    with pytest.raises(ConfigurationError, match="this folder contains no exchange"):
        planner(producer).next(log.offsets[-1])
    again = Producer(tmp_path / "e")
    again.start()
    again.start()  # this process has written as the first one, to the exchange that was there before
    again.write(rows(90, 93))
    again.write(rows(93, 96))
    with pytest.raises(OffsetError, match="not the one that was read"):
        planner(producer).next(log.offsets[-1])
    with pytest.raises(OffsetError, match="deleted and created again"):
        running.next(log.offsets[-1])
    piece = log.epoch(1)[0]
    for reader in (source(producer), pickle.loads(shipped)):
        with pytest.raises(OffsetError, match="deleted and created again"):
            list(reader.read(Channel(piece.channel, None, piece.data), piece.start, piece.end))


@pytest.mark.parametrize("wrong", [-1, 3, 70_000, None])
def test_a_row_of_a_partition_that_is_not_there_is_refused(producer: Producer, wrong: int | None) -> None:
    given = [*rows(0, 3), {"id": 3, "word": "w", "p": wrong}]
    with pytest.raises(DataError, match="numbered 0 to 2") as caught:
        producer.write(given)
    assert "null" in caught.value.what if wrong is None else str(wrong) in caught.value.what
    assert list(visible(producer.parts)) == []


@pytest.mark.parametrize(
    ("schema", "key", "message"),
    [
        (columns("id bigint, p int"), "nowhere", "column 'nowhere' does not exist"),
        (columns("id bigint"), "", "column 'p' does not exist"),
        (columns("p int").add("v", T.CalendarIntervalType()), "", "'v' has the type interval, which Arrow does not"),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path: Path, schema: T.StructType, key: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ExchangeSink({**Producer(tmp_path).options, **({"key": key} if key else {})}).validate(schema)


def test_a_consumer_stands_where_its_newest_committed_epoch_ends(producer: Producer, tmp_path: Path) -> None:
    """Not where one is planned; also when Spark has deleted the commit that was seen last."""
    query = FakeQuery(tmp_path / "c")
    front = CommittedFront(Consumer("s", str(tmp_path / "c"), "q"), 3)
    log, running = Log(), planner(producer, max_rows_per_epoch=3)
    producer.write(rows(0, 9))
    assert front.look() == Front(0, (0, 0, 0))
    log.plan(running)
    query.plan(log.offsets[-1])
    assert front.look() == Front(0, (0, 0, 0)), "planned alone"
    query.commit_planned()
    log.plan(running)
    query.plan(log.offsets[-1])
    assert front.look() == Front(1, (1, 1, 1))
    query.commit_planned()
    assert front.look() == Front(1, (2, 2, 2))
    producer.seal()
    log.plan(running)
    query.commit(log.offsets[-1])
    for epochs in ("[01]", "2"):
        for file in (tmp_path / "c").glob(f"*/{epochs}"):
            file.unlink()
        assert front.look() is None, "it has read everything"


def test_a_query_begun_by_another_source_stands_at_the_beginning(tmp_path: Path) -> None:
    query = FakeQuery(tmp_path / "c")
    query.commit(SourceOffset("other", ended=True))
    query.commit(SourceOffset("s"))
    assert CommittedFront(Consumer("s", str(tmp_path / "c"), "q"), 2).look() == Front(0, (0, 0))


def test_it_is_as_full_as_its_slowest_consumer_is_behind(producer: Producer, tmp_path: Path) -> None:
    places = {uid: FakeQuery(tmp_path / uid) for uid in ("fast", "slow")}
    log = ArrowLog(LocalFolder(Path(producer.options["path"]) / "log"), "e")
    fill = Fill(log, [Consumer(uid, str(place.checkpoint), f"of {uid}") for uid, place in places.items()], 3)
    assert fill.level().rows == 0
    producer.write(rows(0, 9))
    producer.write(rows(9, 12))
    everything = fill.level()
    assert (everything.rows, everything.bytes) == (12, everything.stored) and everything.stored > 0
    for uid, at in (("fast", [3, 0]), ("slow", [1, 2])):
        places[uid].commit(_standing(uid, at))
    left = fill.level()
    assert (left.rows, left.slowest) == (6, "of slow"), "3 of the first entry, and 3 of the second"
    first, second = (log.entry(number) for number in range(1, 3))
    assert first is not None and second is not None
    assert left.bytes == second.bytes + first.bytes - first.bytes * 6 // 9
    places["slow"].commit(_standing("slow", [3, 0]))
    assert fill.level().rows == fill.level().bytes == 0
    release(producer, 3, 12)
    producer.write(rows(12, 14))
    level = fill.level()
    assert (level.rows, level.bytes) == (2, level.stored), "what is released is not on disk"
    assert Fill(log, [Consumer(uid, str(places[uid].checkpoint), f"of {uid}") for uid in places], 3).level() == level
    assert Fill(log, [], 3).level() == Level(stored=level.stored)


def _standing(uid: str, at: list[int]) -> SourceOffset:
    return SourceOffset(uid, running={str(number): Running(at) for number in range(3)})


def test_rows_released_during_a_look_count(producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer has committed, and the driver has released and deleted, between the steps of one look."""
    checkpoint = FakeQuery(tmp_path / "s")
    log = arrow_parts(LocalFolder(Path(producer.options["path"])), "e").master.log
    fill = Fill(log, [Consumer("s", str(checkpoint.checkpoint), "q")], 3)
    producer.write(rows(0, 9))
    producer.write(rows(9, 12))
    checkpoint.commit(_standing("s", [1, 1]))
    before, raced = rows_before, list[int]()

    def late(*given: Any) -> int:
        if not raced:
            raced.append(1)
            checkpoint.commit(_standing("s", [3, 0]))
            release(producer, 3, 12)
            producer.write(rows(12, 16))
            log._kept.clear()  # type: ignore[attr-defined]
        return before(*given)

    monkeypatch.setattr(consumers, "rows_before", late)
    assert fill.level().rows == 4
    assert raced


def test_sources_of_a_producer_wait_while_the_exchange_is_full(
    producer: Producer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer here reads an exchange itself; what it writes may hold 5 rows and one epoch."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "registry"))
    target = Producer(tmp_path / "t")
    target.options["max_in_flight"] = "5"
    target.start()
    checkpoint = FakeQuery(tmp_path / "s")
    options: dict[str, str] = {}  # of the kind
    writes = (("arrow", target.options["path"], options, (("s", str(checkpoint.checkpoint), "slow"),)),)
    given = registration(uid="s", writes=writes, start=7)
    registry.publish([given], tmp_path / "registry")

    def noted(start: int = 7) -> Hold | None:
        return noted_hold(tmp_path / "registry", ["other", "s"], start)

    producer.write(rows(0, 30))
    log = Log()
    running = Planner(source(producer, max_rows_per_epoch=4), given, FakeLedger())
    for epoch, planned in enumerate((True, True, False)):
        assert (log.plan(running) is not None) is planned
        assert (noted() is not None) is not planned
        if planned:
            target.write(rows(epoch * 4, epoch * 4 + 4))
    checkpoint.plan(_standing("s", [2, 0]))
    assert log.plan(running) is None, "planned is not committed"
    hold = noted()
    assert hold is not None and hold.what == "held back by query 'slow': 8 of 5 rows in exchange 'out'"
    assert noted(start=8) is None, "an earlier start has left it"
    assert log.plan(Planner(source(producer), given, FakeLedger())) is None
    checkpoint.commit_planned()
    assert log.plan(Planner(source(producer, max_rows_per_epoch=4), given, FakeLedger())) is not None
    assert noted() is None, "a planner that was started again takes the note of the one before it away"
    for unlimited in (
        (),
        (("arrow", target.options["path"], options, ()),),
        (("arrow", str(tmp_path / "nowhere"), options, (("s", "x", "q"),)),),
    ):
        target.write(rows(100, 200))
        free = Planner(source(producer, max_rows_per_epoch=4), registration(writes=unlimited), FakeLedger())
        assert log.plan(free) is not None


def test_a_source_is_pickled_without_what_it_has_opened(producer: Producer) -> None:
    producer.write(rows(0, 3))
    one = source(producer)
    assert one.advance_together({str(number): [0, 0] for number in range(3)}, Limit(), None) is not None
    copy = pickle.loads(pickle.dumps(one))
    made = producer.parts.master.describe()
    assert made is not None
    batches = [batch for number in range(3) for batch in copy.read(Channel(str(number), None, made.id), [0, 0], [2, 0])]
    assert sorted(pa.Table.from_batches(batches).column("id").to_pylist()) == [0, 1, 2]


def test_the_lag_is_what_is_written_and_not_read(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "KNOWN_S", 1e9)
    producer.write(rows(0, 10))
    log, running = Log(), planner(producer, max_rows_per_epoch=4)
    assert running.lag(log.offsets[-1]) is None, "nothing was looked at"
    log.plan(running)
    assert running.lag(log.offsets[-1]) == 6
    producer.write(rows(10, 15))
    assert running.lag(log.offsets[-1]) == 6, "as of the last look"
    monkeypatch.setattr(exchange, "KNOWN_S", -1.0)
    assert running.lag(log.offsets[-1]) == 11, "after a second it is looked up, without a plan"
    log.plan(running)
    assert running.lag(log.offsets[-1]) == 7
    producer.seal()
    while log.plan(running) is not None:
        pass
    assert running.lag(log.offsets[-1]) == 0
