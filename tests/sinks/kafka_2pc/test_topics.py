"""Which topics `kafka_2pc` compares with those that it has written to, if rows name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ext.errors import StateError
from spark_ext.schemas.ddl import columns
from spark_ext.sinks.contract import Claim, CommitOutcome
from spark_ext.sinks.kafka_2pc.epochs import EpochRecord
from tests.servers.kafka import Broker
from tests.sinks.kafka_2pc.kafka_hand import Sink, values

ROWS = columns("topic string, value string")

COMMITTED = CommitOutcome.COMMITTED


def run(sink: Sink, epoch: int, *topics: str) -> CommitOutcome:
    return sink.commit(epoch, sink.write(epoch, [{"topic": topic, "value": f"{epoch}"} for topic in topics]))


def test_a_claim_keeps_the_topics_of_its_own_lineage_only() -> None:
    """Those of the lineage before a reset were kept as well, so that each commit after it was refused again."""
    record = EpochRecord(epochs={"spark_ext:out:0:q": 7}, topics={"a": "1"})
    assert record.claimed(Claim("out", "j", "i", 2, 0), {"b": "2"}).topics == {"a": "1", "b": "2"}
    assert record.claimed(Claim("out", "j", "i", 2, 1), {"b": "2"}).topics == {"b": "2"}
    assert record.claimed(Claim("out", "j", "i", 2, 1), {}).epochs == record.epochs


def test_after_a_reset_a_topic_that_was_made_anew_is_written(kafka: Broker, tmp_path: Path) -> None:
    """It is refused until then. The reset that the refusal advises did not help: the first commit was refused again."""
    topic = kafka.topic()
    first = Sink(kafka, tmp_path, ROWS, 1, start=11, transactional_id=topic)
    first.claim()
    run(first, 0, topic)
    kafka.delete(topic)
    kafka.make(topic)
    with pytest.raises(StateError, match="created again"):
        run(first, 1, topic)
    reset = Sink(kafka, tmp_path, ROWS, 2, start=12, lineage=1, transactional_id=topic)
    reset.claim()
    assert run(reset, 0, topic) is COMMITTED
    assert values(kafka, topic) == ["0"]
    kafka.delete(topic)
    with pytest.raises(StateError, match="deleted"):
        run(reset, 1, topic)


def test_a_topic_that_is_no_longer_written_to_may_be_deleted(kafka: Broker, tmp_path: Path) -> None:
    """Commits took no notice of it, and the first epoch without rows was refused: the job could not continue."""
    old, topic = kafka.topic("old"), kafka.topic()
    sink = Sink(kafka, tmp_path, ROWS, 1, start=11, transactional_id=topic)
    sink.claim()
    run(sink, 0, old, topic)
    kafka.delete(old)
    assert run(sink, 1, topic) is COMMITTED
    sink.check(2, previous=1)
    with pytest.raises(StateError, match=f"the topic '{old}' was deleted"):
        run(sink, 3, old, topic)
    assert run(sink, 3, topic) is COMMITTED
    # The same sink, now with the option: nothing but its topic is compared.
    fixed = Sink(kafka, tmp_path, ROWS, 2, start=12, transactional_id=topic, topic=topic)
    fixed.claim(previous=3)
    fixed.check(4, previous=3)
    kafka.delete(topic)
    with pytest.raises(StateError, match=f"the topic '{topic}' was deleted"):
        fixed.check(4, previous=3)
