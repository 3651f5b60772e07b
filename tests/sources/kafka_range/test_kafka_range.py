"""`kafka_range` beyond the contract kit: bounds, gaps, retention, partitions that are added, without Spark."""

import contextlib
import random
import time
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message

from spark_ext.errors import ConfigurationError, DataError, SparkExtError, StorageError, TransientError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import BadRow, Channel, Limit
from spark_ext.sources.kafka_range.reader import _readable
from spark_ext.sources.kafka_range.source import KafkaRange
from spark_ext.sources.staged import Cutover
from spark_ext.testing.source_kit import SourceRun, drive
from tests.servers.kafka import Broker
from tests.sources.kafka_range.kafka_kit import begun, run_of, source, to_rest
from tests.support.waiting import until


def read(kafka: Broker, topics: str, **options: str) -> list[str]:
    return values(to_rest(run_of(kafka, topics, **options)))


def values(run: SourceRun) -> list[str]:
    return [value.decode() for value in run.trace.all_rows()["value"].to_pylist()]


def named(prefix: str, *numbers: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(*numbers)]


def test_offsets_at_both_ends(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    kafka.send(topic, named("a", 10), partition=0)
    kafka.send(topic, named("b", 10), partition=1)
    ends = {"starting": f'{{"{topic}": {{"0": 3, "1": -2}}}}', "ending": f'{{"{topic}": {{"0": 7, "1": -1}}}}'}
    assert sorted(read(kafka, topic, **ends)) == sorted(named("a", 3, 7) + named("b", 10))


def test_times_at_both_ends_for_all_or_by_partition(kafka: Broker) -> None:
    """A time between two messages, one before all, one behind all."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    for number in range(10):
        kafka.send(topic, [f"a{number}"], partition=0, timestamp=1_700_000_000_000 + number * 1000)
        kafka.send(topic, [f"b{number}"], partition=1, timestamp=1_700_000_000_000 + number * 1000)
    whole = {"starting_timestamp": "1700000002500", "ending_timestamp": "2023-11-14T22:13:27Z"}
    assert sorted(read(kafka, topic, **whole)) == named("a", 3, 7) + named("b", 3, 7)
    by_partition = {
        "starting_timestamp": f'{{"{topic}": {{"0": "2000-01-01", "1": "1700000008000"}}}}',
        "ending_timestamp": f'{{"{topic}": {{"0": "2023-11-14T22:13:21", "1": "2024-01-01"}}}}',
    }
    assert sorted(read(kafka, topic, **by_partition)) == named("a", 1) + named("b", 8, 10)


def test_the_end_is_where_the_log_ended_when_it_began(kafka: Broker) -> None:
    """Also for a new planner, and for partitions that have given no row by then; new ones are not in it."""
    topic = kafka.topic(partitions=3)
    for partition in range(3):
        kafka.send(topic, named(f"{partition}-", 5), partition=partition)
    run = run_of(kafka, topic, max_rows_per_epoch="1", readers="1")
    assert run.epoch()
    for partition in range(3):
        kafka.send(topic, ["late"] * 5, partition=partition)
    kafka.grow(topic, 4)
    kafka.send(topic, ["late"], partition=3)
    run.restart({})
    to_rest(run)
    assert run.offset.ended
    assert sorted(values(run)) == sorted(value for partition in range(3) for value in named(f"{partition}-", 5))


def test_without_an_end_it_reads_new_messages_and_partitions(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.send(topic, ["before"])
    options = {"starting": "latest", "ending": "none", "discovery_interval": "0"}
    run = run_of(kafka, topic, "value binary, partition int", **options)
    run.epoch()
    kafka.send(topic, ["after"])
    until(run.epoch, "the message")
    kafka.grow(topic, 2)
    kafka.send(topic, ["first of the new one"], partition=1)
    until(run.epoch, "the new partition")
    run.restart({})
    kafka.send(topic, ["second"], partition=1)
    until(run.epoch, "the message after the restart")
    assert not run.source.bounded and not run.offset.ended
    rows = [(row["partition"], row["value"]) for row in run.trace.all_rows().to_pylist()]
    assert sorted(rows) == [(0, b"after"), (1, b"first of the new one"), (1, b"second")]


def test_uncommitted_messages_are_awaited_and_aborted_skipped(kafka: Broker) -> None:
    """Ranges that end in a marker, begin with one, and hold nothing but aborted messages."""
    topic = kafka.topic()
    for number in range(6):
        kafka.send_in_transaction(topic, [f"{number}"] * 2, commit=number % 2 == 0)
    assert read(kafka, topic) == ["0", "0", "2", "2", "4", "4"]
    made = source(kafka, topic)
    (channel,) = begun(made).values()
    made.declared = columns("offset bigint")

    def offsets(start: int, end: int) -> list[int]:
        batches = made.read(channel, start, end)
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    every = offsets(0, 18)
    assert every == [0, 1, 6, 7, 12, 13]
    for start in range(19):
        for end in range(start, 19):
            assert offsets(start, end) == [offset for offset in every if start <= offset < end], (start, end)


def test_gaps_of_compaction_are_passed_over(kafka: Broker) -> None:
    """The last message of each key is left; the ranges in between are empty."""
    settings: dict[str, Any] = {"cleanup_policy": "compact", "segment_ms": 100, "min_cleanable_dirty_ratio": "0.01"}
    topic = kafka.topic(max_compaction_lag_ms=100, **settings)
    for number in range(20):
        kafka.send(topic, [f"{number}"] * 3, key=f"{number % 3}")

    def compacted() -> bool:
        kafka.send(topic, ["roll"], key="roll")
        return len(kafka.messages(topic)) < 30

    until(compacted, "the topic to be compacted")
    kafka.set(topic, cleanup_policy="delete")  # otherwise "roll" is compacted while it is read
    there = [(message.offset(), (message.value() or b"").decode()) for message in _at_rest(kafka, topic)]
    make = lambda given: source(kafka, topic, **given)  # noqa: E731
    trace = drive(make, {}, schema=columns("offset bigint, value binary"), rng=random.Random(3))
    assert trace.ended
    assert [(row["offset"], row["value"].decode()) for row in trace.all_rows().to_pylist()] == there


def _at_rest(kafka: Broker, topic: str) -> list[Message]:
    """All messages of a topic, once nothing was removed for longer than the broker's cleaner pauses."""
    found, since = kafka.messages(topic), time.monotonic()
    while time.monotonic() < since + 0.6:
        again = kafka.messages(topic)
        if len(again) != len(found):
            found, since = again, time.monotonic()
    return found


def test_records_that_retention_removed_are_reported_or_skipped(kafka: Broker) -> None:
    """When the range is resolved, and when it is read after it was planned."""
    topic = kafka.topic()
    kafka.send(topic, named("a", 10))
    made = source(kafka, topic)
    (channel,) = begun(made).values()
    kafka.forget(topic, 4)
    with pytest.raises(DataError, match=r"offsets 0 to 3 of partition 0 .* retention has deleted them") as caught:
        list(made.read(channel, 0, 10))
    assert "lost_records=accept" in caught.value.do
    start = f'{{"{topic}": {{"0": 2}}}}'
    with pytest.raises(DataError, match="offsets 2 to 3"):
        begun(source(kafka, topic, starting=start))
    assert read(kafka, topic, starting=start, lost_records="accept") == named("a", 4, 10)
    accepting = source(kafka, topic, lost_records="accept")
    accepting.declared = columns("value binary")
    assert pa.Table.from_batches(accepting.read(channel, 0, 10)).num_rows == 6
    assert list(accepting.read(channel, 0, 3)) == []


def test_a_topic_created_again_is_reported_by_its_offsets(kafka: Broker) -> None:
    """Where the brokers give topics no ids; see `test_changed_topics` for the others."""
    topic = kafka.topic()
    kafka.send(topic, named("a", 10))
    (channel,) = begun(source(kafka, topic, ending="none")).values()
    kafka.delete(topic)
    kafka.make(topic)
    kafka.send(topic, ["other"])
    fresh = source(kafka, topic, ending="none")
    channel = Channel(channel.id, None, [*channel.data[:3], None])
    fresh.resume([channel], frozenset())
    with pytest.raises(DataError, match="ends at offset 1, but was read up to 10"):
        fresh.advance(channel, 10, Limit())
    with pytest.raises(DataError, match="it is not the topic that was read before"):
        list(fresh.read(channel, 5, 10))


def test_a_cutover_says_where_it_begins(kafka: Broker) -> None:
    """By partition, with or without the topic, or by a time; what is not named begins as the options say."""
    topic = kafka.topic(partitions=2, retention_ms=-1)
    for number in range(5):
        for partition in range(2):
            kafka.send(topic, [f"{number}"], partition=partition, timestamp=1000 * (number + 1))

    def starts(cutover: Cutover) -> list[Any]:
        made = source(kafka, topic, ending="none")
        made.follow(cutover)
        return [channel.begin for channel in begun(made).values()]

    assert starts(Cutover({"0": 2})) == [3, 0]
    assert starts(Cutover({f"{topic}:0": 2, f"{topic}:1": 4})) == [3, 5]
    assert starts(Cutover(time=3_000_000)) == starts(Cutover(time=3_000_000, rows=2)) == [3, 3]
    with pytest.raises(DataError, match="2 messages in 2 partitions have that timestamp"):
        starts(Cutover(time=3_000_000, rows=1))
    assert starts(Cutover()) == [0, 0]


def test_topics_by_pattern(kafka: Broker) -> None:
    one, two, other = kafka.topic("pat-a"), kafka.topic("pat-b"), kafka.topic("other")
    for topic in (one, two, other):
        kafka.send(topic, [topic])
    assert sorted(begun(source(kafka, "", pattern="pat-.*"))) == [f"{one}-0", f"{two}-0"]


def test_headers_keys_and_times(kafka: Broker) -> None:
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    kafka.send(topic, [None], key=b"\x00k", headers=[("h", b"1"), ("h", None)])
    (row,) = to_rest(run_of(kafka, topic, "", headers="true")).trace.all_rows().to_pylist()
    assert (row["key"], row["value"], row["offset"], row["timestampType"]) == (b"\x00k", None, 0, 1)
    assert row["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert abs(row["timestamp"].timestamp() * 1000 - (kafka.messages(topic)[0].timestamp()[1])) < 1


def test_a_header_whose_key_is_not_utf8_is_refused() -> None:
    """Producers of other languages can send it; the library then ends a call with an error of the interpreter."""

    class Odd:
        def __init__(self, offset: int) -> None:
            self.at = offset

        def headers(self) -> Any:
            if self.at == 7:
                raise SystemError("<method 'headers'> returned a result with an exception set")

        def offset(self) -> int:
            return self.at

        def value(self) -> bytes:
            return b"v"

    bad: list[tuple[BadRow, DataError]] = []
    good = _readable([Odd(6), Odd(7), Odd(8)], ("t", 1), "test", lambda *one: bad.append(one))  # type: ignore[list-item]
    assert [one.offset() for one in good] == [6, 8]
    [(row, error)] = bad
    assert (row.position, row.raw) == ({"topic": "t", "partition": 1, "offset": 7}, b"v")
    assert "message at offset 7 of partition 1 of topic 't' has a key that is not UTF-8" in error.what


def test_a_broker_is_reported_when_down_and_read_when_back(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.send(topic, named("a", 5))
    made = source(kafka, topic, ending="none", request_timeout="2 s")
    made.declared = columns("value binary")
    (channel,) = begun(made).values()
    assert sum(batch.num_rows for batch in made.read(channel, 0, 5)) == 5
    kafka.crash()
    with pytest.raises(StorageError):
        list(made.read(channel, 0, 5))
    with pytest.raises(StorageError):
        source(kafka, topic, request_timeout="1 s").open()
    kafka.start()

    def read() -> int | None:
        with contextlib.suppress(StorageError):  # on a busy machine it needs more than the two seconds at first
            return sum(batch.num_rows for batch in made.read(channel, 0, 5))
        return None

    assert until(read, "the broker is read again") == 5


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": ""}, "give either topics or pattern"),
        ({"pattern": "a.*"}, "give either topics or pattern"),
        ({"starting": "soon"}, "give earliest, latest or offsets by partition"),
        ({"starting": '{"t": {"0": "x"}}'}, "'x' is not an offset"),
        ({"ending": "earliest"}, "give latest, none or offsets by partition"),
        ({"starting": "latest", "starting_timestamp": "0"}, "starting and starting_timestamp exclude each other"),
        ({"ending_timestamp": "tomorrow"}, "'tomorrow' is not a time"),
        ({"client_options": '{"isolation.level": "read_uncommitted"}'}, "'isolation.level' is set by the connector"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        KafkaRange({"uid": "in", "bootstrap_servers": "127.0.0.1:1", "topics": "t", **options})


def test_bounds_that_the_topic_does_not_have_are_refused(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    for options, said in (
        ({"starting": f'{{"{topic}": {{"0": 0}}}}'}, "'starting' does not name partition 1"),
        ({"ending": f'{{"{topic}": {{"0": 0, "1": 0, "2": 0}}}}'}, "'ending' names partition 2 .* does not exist"),
        ({"starting": f'{{"{topic}": {{"0": 0, "1": 5}}}}'}, "ends at offset 0, before the offset 5"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            begun(source(kafka, topic, **options))
    with pytest.raises(ConfigurationError, match="'nowhere' cannot be read"):
        source(kafka, "nowhere").open()


def test_a_password_is_not_shown(kafka: Broker) -> None:
    given = '{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.password": "s3cret"}'
    made = source(kafka, "t", client_options=given, request_timeout="1 s")
    with pytest.raises(SparkExtError) as caught:
        made.open()
    assert "s3cret" not in f"{caught.value} {made.options!r} {made.options.public()}"
    assert isinstance(caught.value, TransientError | ConfigurationError)


def test_seek_takes_offsets_that_are_there_and_refuses_others(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    kafka.send(topic, named("a", 20), partition=0)
    run = run_of(kafka, topic, max_rows_per_epoch="4")
    while not run.trace.all_rows().num_rows:
        assert run.epoch()
    (name,) = [one for one, state in run.offset.running.items() if state.at]
    at = run.offset.running[name].at
    kafka.send(topic, named("b", 5), partition=0)
    for wrong in (-1, 21, 1.5, "3", None, True, [3]):
        with pytest.raises(ConfigurationError, match=r"an offset of .*, from 0 to 20"):
            run.seek(name, wrong)
    assert run.seek(name, 12) == 12
    run.epoch()
    run.replay()
    assert run.seek(name, 1) == 1
    run.epoch()
    run.seek(name, 20)
    read = values(to_rest(run))
    assert read[:at] == named("a", at)
    again = read.index("a1", at)
    assert read[at:again] == named("a", 12, 12 + again - at)
    assert read[again:] == named("a", 1, 1 + len(read) - again)
    assert run.offset.ended


def test_messages_are_as_old_as_their_timestamps(kafka: Broker) -> None:
    topic = kafka.topic(retention_ms=-1)
    for number in range(3):
        kafka.send(topic, [f"a{number}"], timestamp=1_700_000_000_000 + number * 1000)
    made = source(kafka, topic, ending="none")
    (channel,) = begun(made).values()
    assert made.knows_when_written
    old = [made.written_before(channel, offset, 1_700_000_001.5) for offset in range(4)]
    assert old == [True, True, False, False]
    assert made.written_before(channel, 2, 1_800_000_000.0), "no later message is there"
    assert not made.written_before(channel, 0, 1_600_000_000.0)


def test_it_waits_for_the_first_message_of_that_time(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    at = int(time.time() * 1000) + 60_000
    made = source(kafka, topic, ending_timestamp=str(at), ending_grace="1 h")
    first, second = begun(made).values()
    assert made.bounded and first.data[2] is None
    kafka.send(topic, ["a", "b"], timestamp=at - 2)
    until(lambda: made.advance(first, 0, Limit()).end == 2, "both messages are seen")
    assert not made.advance(first, 2, Limit()).finished, "older ones may come"
    kafka.send(topic, ["c"], timestamp=at - 1)
    kafka.send(topic, ["d", "e"], timestamp=at)
    until(lambda: made.advance(first, 2, Limit()).finished, "the end is seen")
    assert made.advance(first, 2, Limit()).end == 3, "the message at that time is not read"
    assert made.advance(Channel(first.id, None, first.data), 0, Limit(rows=2)).end == 2
    assert not made.advance(second, 0, Limit()).finished
    again = source(kafka, topic, ending_timestamp=str(at), ending_grace="1 h")
    again.resume([Channel(first.id, None, first.data), Channel(second.id, None, second.data)], frozenset())
    assert list(again.discover()) == []
    assert again.advance(first, 2, Limit()).end == 3, "another planner finds the same end"


def test_messages_of_that_time_that_are_there_before_it_end_it(kafka: Broker) -> None:
    topic = kafka.topic()
    at = int(time.time() * 1000) + 3_600_000
    kafka.send(topic, ["a"], timestamp=at - 1)
    kafka.send(topic, ["b"], timestamp=at + 5)
    made = source(kafka, topic, ending_timestamp=str(at), ending_grace="0")
    (channel,) = begun(made).values()
    step = made.advance(channel, 0, Limit())
    assert (step.end, step.finished) == (1, True)


def test_partitions_without_such_a_message_end_after_the_grace(kafka: Broker) -> None:
    topic = kafka.topic(partitions=2)
    at = int(time.time() * 1000) + 5_000
    made = source(kafka, topic, ending_timestamp=str(at), ending_grace="200 ms")
    channels = [channel for _, channel in sorted(begun(made).items())]

    def finished() -> list[bool]:
        return [made.advance(channel, 0, Limit()).finished for channel in channels]

    assert finished() == [False, False]
    kafka.send(topic, ["0", "1", "2"], partition=1, timestamp=at - 1)
    until(lambda: any(finished()), "time and grace have passed")
    assert time.time() * 1000 >= at + 200
    assert finished() == [True, True]
    assert [made.advance(channel, 0, Limit()).end for channel in channels] == [0, 3]


def test_a_time_that_has_just_passed_is_waited_for_as_well(kafka: Broker) -> None:
    """A source that begins late, such as the last stage of a hybrid one: what is on its way belongs to it."""
    topic = kafka.topic()
    at = int(time.time() * 1000) - 1_000
    kafka.send(topic, ["a"], timestamp=at - 1)
    made = source(kafka, topic, ending_timestamp=str(at), ending_grace="1 h")
    (channel,) = begun(made).values()
    until(lambda: made.advance(channel, 0, Limit()).end == 1, "the message is seen")
    assert not made.advance(channel, 1, Limit()).finished
    kafka.send(topic, ["late"], timestamp=at - 1)
    kafka.send(topic, ["behind"], timestamp=at)
    until(lambda: made.advance(channel, 1, Limit()).finished, "the end is seen")
    assert made.advance(channel, 1, Limit()).end == 2
    (ended,) = begun(source(kafka, topic, ending_timestamp=str(at), ending_grace="0")).values()
    assert ended.data[2] == 2
