"""A start whose target does not answer at once: asked as often as a commit is, then refused; rows are exact."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import spark_ext as sx
from spark_ext.errors import StorageError
from tests.servers.kafka import Broker
from tests.servers.postgres import PASSWORD, Database
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import refused


class _Then(logging.Handler):
    """Does something at the first message, and keeps all of them."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())
        if len(self.heard) == 1:
            self._act()


@contextmanager
def at_first_failure(act: Callable[[], object]) -> Iterator[list[str]]:
    """Once an attempt has failed, `act`; returns what was logged."""
    handler, log = _Then(act), logging.getLogger("spark_ext.sink")
    log.addHandler(handler)
    try:
        yield handler.heard
    finally:
        log.removeHandler(handler)
        if not handler.heard:
            act()


def test_a_claim_that_fails_in_passing_is_tried_again(lab: JobHarness) -> None:
    assert lab.job(lab.source(counts="20"), sink_fail_claims=2, sink_commit_backoff="1 ms").run(progress=False).finished
    assert [event["event"] for event in lab.events("claim_failed", "claim")] == ["claim_failed"] * 2 + ["claim"]
    assert lab.numbers() == expected(20)


def test_after_its_last_attempt_a_start_fails_and_the_next_runs(lab: JobHarness) -> None:
    given: dict[str, Any] = {"sink_fail_claims": 3, "sink_commit_attempts": 3, "sink_commit_backoff": "1 ms"}
    with refused(StorageError, "the folder is missing"):
        lab.job(lab.source(counts="20"), **given).start()
    assert len(lab.events("claim_failed")) == 3
    assert not lab.spark.streams.active and not lab.events("open", "read")
    assert lab.job(lab.source(counts="20"), **given).run(progress=False).finished
    assert lab.numbers() == expected(20)


def test_brokers_that_answer_late(lab: JobHarness, kafka: Broker) -> None:
    """Frozen when the job starts; they continue after the first attempt."""
    topic = kafka.topic()
    given = {"uid": "q-out", "bootstrap_servers": kafka.bootstrap, "topic": topic, "request_timeout": "2 s"}
    writer = lab.source(counts="20").selectExpr("CAST(n AS string) AS value").writeStream.format("kafka_2pc")
    kafka.freeze()
    with at_first_failure(kafka.thaw) as heard:
        assert sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", writer.options(**given)).run().finished
    found = re.match("the (check of the target|claim) of sink 'q-out' failed, next attempt in", heard[0])
    assert found and "[STORAGE]" in heard[0], heard[0]
    assert sorted(int(message.value() or b"") for message in kafka.messages(topic)) == list(range(20))


def test_a_database_that_comes_up_late(lab: JobHarness, database: Database) -> None:
    """Not there when the job starts; it is started after the first attempt."""
    writer = lab.source(counts="20").select("channel", "n").writeStream.format("postgres_2pc")
    writer = writer.options(uid="q-out", table="out", **database.options)
    database.server.stop()
    with at_first_failure(database.server.start) as heard:
        assert sx.Job(lab.spark, "lab", state=lab.folder / "state").add("q", writer).run().finished
    assert "[STORAGE]" in heard[0] and not any(PASSWORD in one for one in heard)
    assert database.rows("SELECT channel, n FROM out ORDER BY 1, 2") == expected(20)
