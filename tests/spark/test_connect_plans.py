"""What is read from, and added to, the plans and messages of a client of Spark Connect; no server answers."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")

from pyspark.errors.exceptions.connect import SparkConnectGrpcException, StreamingQueryException
from pyspark.sql.connect import functions as F
from pyspark.sql.connect.streaming.readwriter import DataStreamReader
from pyspark.sql.types import IntegerType

from spark_ext.spark.backend.connect import CONNECT
from spark_ext.spark.backend.contract import name_of_read
from spark_ext.worker_internals import encoded_properties

SESSION: Any = SimpleNamespace(client=SimpleNamespace(), session_id="s")


class _Session(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def frame(uid: str, **options: str) -> Any:
    return (
        DataStreamReader(SESSION).format("datagen").options(uid=uid, **options).schema("id long, ts timestamp").load()
    )


def test_sources_have_their_options_with_keys_in_lower_case() -> None:
    (found,) = CONNECT.sources(frame("in", rowsOf="3").select("id"))
    assert (found.format, found.uid, found.options) == ("datagen", "in", {"uid": "in", "rowsof": "3"})


def test_a_source_counts_as_often_as_it_occurs() -> None:
    rows = frame("a").union(frame("b")).union(frame("a"))
    assert [one.uid for one in CONNECT.sources(rows)] == ["a", "b", "a"]


def test_watermarks_have_the_sources_below_them() -> None:
    below = frame("a").withWatermark("ts", "1 minute").union(frame("b"))
    outer, inner = CONNECT.watermarks(below.withWatermark("ts", "2 minutes"))
    assert ([one.uid for one in outer.sources], [one.uid for one in inner.sources]) == (["b"], ["a"])
    assert inner.column == "ts"


def test_keys_of_the_configuration_have_their_types() -> None:
    rows = frame("a").withColumn("limit", _function(name_of_read("it's; ü", "decimal(10,2)"))())
    rows = rows.where(F.col("id") > _function(name_of_read("k", "struct<a:map<string,double>>"))())
    wanted = (("it's; ü", "decimal(10,2)"), ("k", "struct<a:map<string,double>>"))
    assert CONNECT.configuration_reads(rows.union(rows)) == wanted


def _function(name: str) -> Any:
    def read() -> int:
        return 1

    setattr(read, "__name__", name)  # noqa: B010 - as sx.control.value does
    return F.udf(read, IntegerType())


def test_state_depends_on_keys_and_aggregates_alone() -> None:
    def states(rows: Any, delay: str) -> tuple[str, ...]:
        counted = rows.withWatermark("ts", delay).where("id > 1").groupBy(F.window("ts", "1 day"))
        return CONNECT.stateful_operators(counted.agg(F.count("id").alias("n"))) or ()

    assert states(frame("a"), "1 hour") == states(frame("b"), "2 hours") == (states(frame("a"), "1 hour")[0],)
    other = frame("a").withWatermark("ts", "1 hour").groupBy(F.window("ts", "1 day")).agg(F.sum("id").alias("n"))
    assert CONNECT.stateful_operators(other) != states(frame("a"), "1 hour")


@pytest.mark.parametrize(
    ("given", "trigger"),
    [
        ({"processingTime": "0 seconds"}, "ProcessingTimeTrigger(0)"),
        ({"processingTime": "10 seconds"}, "ProcessingTimeTrigger(10 seconds)"),
        ({"availableNow": True}, "AvailableNowTrigger"),
        ({"once": True}, "OneTimeTrigger"),
    ],
)
def test_a_writer_s_trigger_is_named_as_spark_prints_it(given: dict[str, Any], trigger: str) -> None:
    assert CONNECT.target(frame("a").writeStream.format("delta_2pc").trigger(**given)).trigger == trigger


def test_a_copy_of_a_writer_is_independent() -> None:
    writer = frame("a").writeStream.format("delta_2pc").options(uid="out", Path="p").partitionBy("id")
    copy = CONNECT.copy(writer)
    CONNECT.remove_option(copy.queryName("q"), "path")
    assert CONNECT.target(writer).options == {"uid": "out", "path": "p"}
    assert CONNECT.target(copy).options == {"uid": "out", "queryname": "q"}
    assert CONNECT.target(copy).partitioning == ("id",)
    assert CONNECT.target(copy).trigger == "ProcessingTimeTrigger(0)"
    assert CONNECT.target(copy).output_mode == "Append"


def test_our_sources_and_sink_get_options_and_others_do_not() -> None:
    rate = DataStreamReader(SESSION).format("rate").load().selectExpr("value AS id", "timestamp AS ts")
    writer = frame("a").union(rate).writeStream.format("delta_2pc").options(uid="out")
    made = CONNECT.for_workers(writer, {"spark_ext.workers_secret": "{}"}, lambda name: name != "rate")
    ours, rates = CONNECT.sources(CONNECT.frame(made))
    assert ours.options == {"uid": "a", "spark_ext.workers_secret": "{}"} and rates.options == {}
    assert CONNECT.target(made).options == {"uid": "out", "spark_ext.workers_secret": "{}"}
    assert [dict(one.options) for one in CONNECT.sources(CONNECT.frame(writer))] == [{"uid": "a"}, {}]


def test_a_tag_has_no_comma() -> None:
    assert "," not in encoded_properties({"spark_ext.query": "a,b"})


@pytest.mark.parametrize("sent", [False, True])
def test_a_server_that_has_sent_a_stack_is_not_lost(sent: bool) -> None:
    """A function of the user's may have called a service of its own that is not there."""
    closed: list[bool] = []
    session: Any = _Session(client=SimpleNamespace(close=lambda: closed.append(True)))
    text = "<_InactiveRpcError of RPC that terminated with: status = StatusCode.UNAVAILABLE>"
    failure = SparkConnectGrpcException(text, server_stacktrace="at org.apache.spark" if sent else None)
    assert (CONNECT.lost(session, failure, None) is None) == sent
    assert closed == ([] if sent else [True])


@pytest.mark.parametrize("kind", [SparkConnectGrpcException, StreamingQueryException])
def test_a_query_may_fail_with_a_session_of_its_own(kind: type[SparkConnectGrpcException]) -> None:
    """A function of `foreachBatch` runs in the server with another session."""
    session: Any = _Session()
    found = CONNECT.lost(session, kind("[INVALID_HANDLE.SESSION_CLOSED] session was closed"), None)
    assert (found is None) == (kind is StreamingQueryException)


def test_a_jvm_that_cannot_be_asked_is_not_a_silent_one() -> None:
    """A stall would be blamed on it: None is the answer of an executor that hangs."""
    assert CONNECT.diagnosis(SESSION).threads("driver") == []


def test_a_report_says_what_one_of_the_jvm_says() -> None:
    """A client's has offsets as text, and metrics as rows with a schema; a row may also be as the JVM has it."""
    schema = {"type": "struct", "fields": [{"name": "event_time", "type": "long"}, {"name": "n", "type": "long"}]}
    of_client = {
        "batchId": 3,
        "sources": [{"endOffset": '{"0": [1, 2]}', "numInputRows": 2}, {"endOffset": None, "numInputRows": 3}],
        "observedMetrics": {"m": {"values": [7, None], "schema": schema}, "x": {"event_time": 8}},
    }
    query: Any = SimpleNamespace(recentProgress=[SimpleNamespace(batchId=3, json=json.dumps(of_client))])
    (found,) = map(json.loads, CONNECT.recent_progress(query, 2))
    assert found["observedMetrics"] == {"m": {"event_time": 7, "n": None}, "x": {"event_time": 8}}
    assert found["sources"][0]["endOffset"] == {"0": [1, 2]} and found["numInputRows"] == 5
    assert CONNECT.recent_progress(query, 3) == []
