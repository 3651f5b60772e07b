"""`sx.control.value`: a key of the configuration as a column of a type."""

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import spark_ext as sx
from spark_ext.control.functions import _scalar
from spark_ext.errors import ConfigurationError, JobFailedError
from tests.control.states import Sent, obeyed
from tests.support.jobs import JobHarness
from tests.support.waiting import until

GOOD = [
    (T.DoubleType(), 1, 1.0), (T.DoubleType(), 1.5, 1.5), (T.DoubleType(), "1.5", 1.5), (T.LongType(), 3.0, 3),
    (T.ArrayType(T.DateType()), ["2024-02-29"], [date(2024, 2, 29)]), (T.FloatType(), 0.5, 0.5),
    (T.LongType(), 2**62, 2**62), (T.ByteType(), 127, 127), (T.BooleanType(), True, True), (T.StringType(), "ü", "ü"),
    (T.DecimalType(10, 2), 1.5, Decimal("1.50")), (T.DecimalType(38, 0), 10**30, Decimal(10**30)),
    (T.DateType(), "2024-02-29", date(2024, 2, 29)),
    (T.TimestampType(), "2024-01-01T00:00:00Z", datetime(2024, 1, 1, tzinfo=timezone.utc)),
    (T.ArrayType(T.LongType()), [1, None, 3], [1, None, 3]),
    (T.MapType(T.StringType(), T.LongType()), {"a": 1}, [("a", 1)]),
    (T.StructType([T.StructField("a", T.LongType())]), {"a": 1, "b": 2}, {"a": 1}), (T.DoubleType(), None, None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "wanted"), GOOD)
def test_json_becomes_a_value_of_the_type(kind: T.DataType, given: Any, wanted: Any) -> None:
    assert _scalar(given, kind).as_py() == wanted


BAD = [
    (T.DoubleType(), "much"), (T.DoubleType(), True), (T.DoubleType(), [1]), (T.LongType(), 1.5),
    (T.LongType(), 2**63), (T.ArrayType(T.LongType()), [1.5]), (T.ArrayType(T.DoubleType()), [True]),
    (T.ArrayType(T.LongType()), "12"), (T.StructType([T.StructField("a", T.LongType())]), [1]), (T.ByteType(), 128),
    (T.BooleanType(), 1), (T.StringType(), 1), (T.StringType(), {"a": 1}), (T.DecimalType(3, 2), 1000),
    (T.DateType(), "yesterday"), (T.TimestampType(), "2024-13-01"), (T.ArrayType(T.LongType()), 1),
    (T.ArrayType(T.LongType()), ["a"]), (T.MapType(T.StringType(), T.LongType()), [1]),
    (T.IntegerType(), "0xFFFFFFFF"), (T.DecimalType(38, 0), 2**256), (T.FloatType(), 1e39), (T.TimestampType(), 1.5),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given"), BAD)
def test_what_is_no_value_of_the_type_is_refused(kind: T.DataType, given: Any) -> None:
    with pytest.raises(ValueError):
        _scalar(given, kind)


def test_a_bad_key_type_or_default_is_refused_at_its_definition(spark: SparkSession) -> None:
    for key, kind, default, wrong in (
        ("", "double", None, "key"), (7, "double", None, "key"), ("k", "dubble", None, "type"),
        ("k", "double", "much", "default"), ("k", T.LongType(), True, "default"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=wrong):
            sx.control.value(key, kind, default)  # type: ignore[arg-type]


def test_outside_of_a_job_a_query_fails_by_name(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match="does not run in an epoch of a job"):
        spark.range(1).select(sx.control.value("k", "double")).collect()


def test_a_value_of_another_type_fails_the_query_by_its_key(spark: SparkSession, lab: JobHarness) -> None:
    kinds = {"k": "double", "day": "date", "at": "timestamp", "list": "array<bigint>", "map": "map<string,double>"}
    defaults = {"k": 1, "day": "2024-01-01", "at": "2024-01-01T00:00:00Z", "list": [1], "map": {"a": 1}}
    gate = lab.folder / "gate"
    frame = lab.source(counts="40", max_rows_per_epoch=20, gate=gate)
    columns = [sx.control.value(key, kind, defaults[key]).cast("string").alias(key) for key, kind in kinds.items()]
    job = lab.job(frame.select("channel", "n", F.to_json(F.struct(*columns)).alias("seen"))).start()
    until(lambda: lab.rows(), "the first epoch")
    assert lab.rows()[0]["seen"] == (
        '{"k":"1.0","day":"2024-01-01","at":"2024-01-01 00:00:00","list":"[1]","map":"{a -> 1.0}"}'
    )
    sent = Sent(lab.folder / "state")
    assert sent.refused("set_config", {"key": "k", "value": "much"}).what.startswith(
        "the value of 'k' is not of the type double, as which query 'q' reads it"
    )
    sent("config_schema", {"key": "k", "schema": True})  # what is declared wins
    obeyed(lab.checkpoint(), sent("set_config", {"key": "k", "value": "much"}))
    gate.touch()
    with pytest.raises(JobFailedError, match="the value of the key 'k' is 'much', which is not of type double"):
        job.await_termination()
    assert len(lab.rows()) == 20


def test_a_start_refuses_a_value_that_a_changed_query_cannot_read(spark: SparkSession, lab: JobHarness) -> None:
    def job(kind: str) -> sx.Job:
        frame = lab.source(counts="40", max_rows_per_epoch=20, gate=lab.folder / "gate")
        seen = sx.control.value("k", kind).cast("string").alias("seen")
        return lab.job(frame.select("channel", "n", seen))

    first = job("string").start()
    Sent(lab.folder / "state")("set_config", {"key": "k", "value": "much"})
    first.stop()
    (wrong,) = job("double").plan().refusals
    assert "the value of the key 'k' is 'much', and the query reads it as double" in wrong.what
    with pytest.raises(ConfigurationError, match="'much', and the query reads it as double"):
        job("double").start()
