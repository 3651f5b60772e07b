"""Bad input around Kafka, in real jobs: refused in time, by name, and a good run afterwards is exact."""

import json
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame

import spark_ext as sx
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.jobs.job import Job
from tests.servers.kafka import PASSWORD, USER, Broker
from tests.support.jobs import JobHarness, expected
from tests.support.refusals import add_reader, await_outage, delta_job, failures, refused
from tests.support.saved import held

MESSAGE = "concat(channel, ' ', n) AS value"


def login(password: str) -> str:
    """Settings of a client that has to say who it is."""
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.username": USER}
    return json.dumps({**given, "sasl.password": password})


def job_into(
    lab: JobHarness, frame: DataFrame, kafka: Broker, topic: str, given: dict[str, str], **settings: Any
) -> Job:
    writer = frame.writeStream.format("kafka_2pc").options(uid="q-out", bootstrap_servers=kafka.bootstrap, topic=topic)
    return sx.Job(lab.spark, "lab", state=lab.folder / "state", **settings).add("q", writer.options(**given))


def messages(lab: JobHarness, **options: Any) -> DataFrame:
    return lab.source(**options).selectExpr(MESSAGE)


def there(kafka: Broker, topic: str) -> list[tuple[str, int]]:
    texts = [(message.value() or b"").decode().split(" ") for message in kafka.messages(topic)]
    return sorted((text[0], int(text[1])) for text in texts)


def reader(lab: JobHarness, kafka: Broker, topic: str, **given: Any) -> Any:
    options = {"uid": "in", "bootstrap_servers": kafka.bootstrap, "topics": topic}
    return lab.spark.readStream.format("kafka_range").options(**{**options, **given})


def test_what_the_start_of_a_job_refuses(lab: JobHarness, kafka: Broker) -> None:
    """Before a query runs, and before anything is sent; the same job then runs, also by a listener that asks."""
    topic = kafka.topic()
    source = lab.source(counts="10")
    asked = {"bootstrap_servers": kafka.login}
    cases: list[tuple[DataFrame, dict[str, str], tuple[str, ...]]] = [
        (source.selectExpr(MESSAGE), {"topic": "nowhere"}, ("'nowhere' cannot be written", "create the topic")),
        (source.selectExpr("channel AS key"), {}, ("column 'value' does not exist",)),
        (source.selectExpr("n AS value"), {}, ("column 'value' has the type bigint",)),
        (source.selectExpr(MESSAGE), {"transaction_timeout": "20 min"}, ("INVALID_TRANSACTION_TIMEOUT", "lower")),
        (source.selectExpr(MESSAGE), {**asked, "client_options": login("wrong-" + PASSWORD)}, ("credentials",)),
    ]
    for frame, given, words in cases:
        with refused(ConfigurationError, "sink 'q-out'", *words) as caught:
            job_into(lab, frame, kafka, topic, given).start()
        assert PASSWORD not in str(caught)
        assert not lab.spark.streams.active
    assert there(kafka, topic) == []
    good = {**asked, "client_options": login(PASSWORD)}
    assert job_into(lab, source.selectExpr(MESSAGE), kafka, topic, good).run(progress=False).finished
    assert there(kafka, topic) == expected(10)


def test_what_the_start_of_a_job_refuses_of_its_source(lab: JobHarness, kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.send(topic, ["a", "b"])
    asked = {"bootstrap_servers": kafka.login}
    cases: list[tuple[Any, tuple[str, ...]]] = [
        (reader(lab, kafka, "nowhere"), ("'nowhere' cannot be read", "create the topic")),
        (reader(lab, kafka, topic, **asked, client_options=login("wrong-" + PASSWORD)), ("credentials",)),
        (reader(lab, kafka, topic).schema("value binary, nr int"), ("column 'nr int' is not one of this source",)),
        (reader(lab, kafka, topic).schema("value string"), ("column 'value string' is not one of this source",)),
    ]
    for frame, words in cases:
        with refused(ConfigurationError, "source 'in'", *words) as caught:
            delta_job(lab, frame.load().selectExpr("CAST(value AS string) AS value")).run(progress=False)
        assert PASSWORD not in str(caught)
    good = reader(lab, kafka, topic, **asked, client_options=login(PASSWORD)).load()
    assert delta_job(lab, good.selectExpr("CAST(value AS string) AS value")).run(progress=False).finished
    assert len(DeltaTable(lab.folder / "out").to_pyarrow_table()) == 2


def test_a_message_that_is_too_large(lab: JobHarness, kafka: Broker) -> None:
    """For the topic. The second epoch fails whole and for good; once repaired, it is there once."""
    topic = kafka.topic(max_message_bytes=3000)
    rows = lab.source(counts="60", max_rows_per_epoch=20)
    odd = rows.selectExpr("CASE WHEN n = 33 THEN repeat('x', 5000) ELSE concat(channel, ' ', n) END AS value")
    running = job_into(lab, odd, kafka, topic, {})
    with refused(DataError, "sink 'q-out'", "MSG_SIZE_TOO_LARGE", "max.message.bytes"):
        running.run(progress=False)
    assert [action for _, action in failures(running)] == ["stopped: FAILED"]
    assert there(kafka, topic) == expected(20)
    assert job_into(lab, rows.selectExpr(MESSAGE), kafka, topic, {}).run(progress=False).finished
    assert there(kafka, topic) == expected(60)


@pytest.mark.slow(30, "the broker is killed and started again")
def test_brokers_that_are_away(lab: JobHarness, kafka: Broker) -> None:
    """Longer than any attempts and restarts: the run continues, exact. One query writes to a topic, one reads one."""
    written, read = kafka.topic(), kafka.topic()
    kafka.send(read, [str(n) for n in range(60)])
    gate = lab.folder / "gate"
    given = {"request_timeout": "1 s", "commit_attempts": "2", "commit_backoff": "10 ms"}
    frame = messages(lab, uid="numbers", counts="60", max_rows_per_epoch=20, gate=gate)
    running = job_into(lab, frame, kafka, written, given, restart_attempts=1, restart_backoff="10 ms")
    frame = reader(lab, kafka, read, request_timeout="1 s", max_rows_per_epoch=4, readers=1).load()
    add_reader(lab, running, held(frame.selectExpr("CAST(CAST(value AS string) AS bigint) AS n"), gate, 20))
    await_outage(lab, running.start(), kafka.crash)
    kafka.start()
    assert running.await_termination(120).finished
    assert there(kafka, written) == expected(60)
    assert sorted(DeltaTable(lab.folder / "read").to_pyarrow_table()["n"].to_pylist()) == list(range(60))
