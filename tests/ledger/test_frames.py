from collections import Counter
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_ext.jobs.channel_state import channel_state
from spark_ext.ledger import Ledger, LedgerFrames, LedgerWriter, MaintenanceSettings, maintain, start_incarnation
from spark_ext.ledger.columns import columns
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import ROWS
from spark_ext.ledger.tables import CHECKPOINT_EVERY
from tests.ledger.rows import START, epoch, of_each_table

TYPES = {
    "string": "string", "int64": "bigint", "double": "double", "bool": "boolean", "timestamp[us, tz=UTC]": "timestamp",
}  # fmt: skip


def counted(frames: dict[str, DataFrame]) -> Counter[str]:
    names = [frame.select(F.lit(name).alias("name")) for name, frame in frames.items()]
    return Counter(row["name"] for row in reduce(DataFrame.unionAll, names).collect())


def shape(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


def test_spark_reads_every_table_with_the_right_types(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    frames = LedgerFrames(ledger, spark, channel_state)
    expected = {it.table: [(column.name, TYPES[str(column.arrow)]) for column in columns(it)] for it in ROWS}
    empty: dict[str, DataFrame] = {name: getattr(frames, name)() for name in expected}
    assert {name: shape(frame.schema) for name, frame in empty.items()} == expected
    assert counted(empty) == {} and frames.channel_state().count() == 0
    incarnation = start_incarnation(ledger, "j")
    LedgerWriter(ledger, incarnation).append(of_each_table())
    forget(ledger.uri, incarnation.number)
    there: dict[str, DataFrame] = {name: getattr(frames, name)() for name in expected}
    assert {name: shape(frame.schema) for name, frame in there.items()} == expected
    assert counted(there) == dict.fromkeys(expected, 1)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    row = frames.finished().select(F.get_json_object("position", "$.row"), F.unix_micros("at")).first()
    assert row is not None
    assert tuple(row) == ("3", int(START.timestamp() * 1e6))


def test_spark_reads_what_maintenance_left(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    incarnation = start_incarnation(ledger, "j")
    writer = LedgerWriter(ledger, incarnation)
    forget(ledger.uri, incarnation.number)
    frames: LedgerFrames = LedgerFrames(ledger, spark, channel_state)
    count = CHECKPOINT_EVERY + 10
    for number in range(count):
        writer.append(epoch(number, at=START))
        if number in (5, CHECKPOINT_EVERY + 5):
            assert frames.epochs().count() == number + 1
            maintain(ledger, START, MaintenanceSettings(2, file_retention_hours=0), incarnation.fence)
            assert frames.epochs().count() == number + 1
    found = frames.epochs().agg(F.count("*"), F.countDistinct("epoch"), F.max("epoch")).first()
    assert found is not None
    assert tuple(found) == (count, count, count - 1)
