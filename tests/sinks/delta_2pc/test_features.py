"""Tables that demand more of their writers than `delta_2pc` does are refused, by the feature's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType, TimestampNTZType

from spark_ext.delta.features import TableFacts, demands
from spark_ext.errors import ConfigurationError, DataError, UnsupportedTableError
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from tests.sinks.delta_2pc.delta_kit import Driver, ddl, ids, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN = StructType().add("id", LongType()).add("name", StringType())


def facts(version: int, *features: str, notes: dict[str, Any] | None = None, **configuration: str) -> TableFacts:
    schema = StructType().add("s", StructType().add("id", LongType(), True, notes or {}))
    return TableFacts(version, frozenset(features), {k.replace("__", "."): v for k, v in configuration.items()}, schema)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_an_old_version_alone_demands_nothing(version: int) -> None:
    assert demands(facts(version)) == ()


@pytest.mark.parametrize(
    ("version", "notes", "configuration", "feature"),
    [
        (2, {"delta.invariants": '{"expression": {"expression": "id > 0"}}'}, {}, "invariants"),
        (3, {}, {"delta__constraints__positive": "id > 0"}, "checkConstraints"),
        (4, {"delta.generationExpression": "id + 1"}, {}, "generatedColumns"),
        (5, {}, {"delta__columnMapping__mode": "name"}, "columnMapping"),
        (6, {"delta.identity.start": 1}, {}, "identityColumns"),
        (6, {}, {}, "identityColumns"),
        (2, {}, {"delta__setTransactionRetentionDuration": "interval 1 day"}, "delta.setTransactionRetentionDuration"),
        (8, {}, {}, "writer version 8"),
    ],
)
def test_what_the_metadata_uses_is_demanded(
    version: int, notes: dict[str, Any], configuration: dict[str, str], feature: str
) -> None:
    assert demands(facts(version, notes=notes, **configuration)) == (feature,)


def test_column_mapping_that_is_off_demands_nothing() -> None:
    assert demands(facts(7, "columnMapping", delta__columnMapping__mode="none")) == ()


@pytest.mark.parametrize("feature", ["rowTracking", "clustering", "inCommitTimestamp", "somethingNew"])
def test_listed_features_that_are_not_known_are_demanded(feature: str) -> None:
    assert demands(facts(7, "appendOnly", feature)) == (feature,)


def test_a_demand_that_comes_while_the_query_runs_is_refused_at_the_commit(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t")
    driver.claim()
    driver.run(0, numbered(0, 5))
    log = tmp_path / "t" / "_delta_log"
    newest = DeltaTable(tmp_path / "t").version()
    lines = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    metadata = next(line["metaData"] for line in lines if "metaData" in line)
    metadata["configuration"]["delta.constraints.positive"] = "id > 0"
    (log / f"{newest + 1:020}.json").write_text(json.dumps({"metaData": metadata}))
    with pytest.raises(UnsupportedTableError, match="checkConstraints"):
        driver.run(1, numbered(5, 10))
    assert ids(tmp_path / "t") == list(range(5))


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": "id"}])
def test_columns_of_the_change_data_feed_are_refused(tmp_path: Path, options: dict[str, str]) -> None:
    feed, schema = {"delta.enableChangeDataFeed": "true"}, ddl("id long, _Change_type string")
    driver = Driver(tmp_path / "new", schema, options={**options, "table_properties": json.dumps(feed)})
    with pytest.raises(ConfigurationError, match="'_Change_type' has the name of a column of the change data feed"):
        driver.claim()
    assert not (tmp_path / "new").exists()
    Driver(tmp_path / "t", schema, options=options).run(0, [{"id": 1, "_Change_type": "x"}])
    DeltaTable(tmp_path / "t").alter.set_table_properties(feed)
    with pytest.raises(ConfigurationError, match="'_Change_type' has the name"):
        Driver(tmp_path / "t", schema, options=options).sink().validate(schema)


def test_local_times_are_found_wherever_they_are(tmp_path: Path) -> None:
    """delta-rs looks into no map: a table that it creates, or to which it adds a column, could not be opened again."""
    schema = StructType().add("id", "long").add("m", ArrayType(MapType(StringType(), TimestampNTZType())))
    with pytest.raises(ConfigurationError, match="timestamp_ntz in a map"):
        Driver(tmp_path / "new", schema).claim()
    assert not (tmp_path / "new").exists()
    Driver(tmp_path / "t", ddl("id long")).run(0, [{"id": 1}])
    with pytest.raises(UnsupportedTableError, match="timestampNtz for a new column"):
        Driver(tmp_path / "t", schema, options={"merge_schema": "true"}).sink().validate(schema)


REFUSED = {
    "columnMapping": "TBLPROPERTIES('delta.columnMapping.mode'='name')",
    "rowTracking": "TBLPROPERTIES('delta.enableRowTracking'='true')",
    "allowColumnDefaults": "TBLPROPERTIES('delta.feature.allowColumnDefaults'='supported')",
    "clustering": "CLUSTER BY (id)",
    "inCommitTimestamp": "TBLPROPERTIES('delta.enableInCommitTimestamps'='true')",
    "typeWidening": "TBLPROPERTIES('delta.enableTypeWidening'='true')",
    "vacuumProtocolCheck": "TBLPROPERTIES('delta.feature.vacuumProtocolCheck'='supported')",
}

ACCEPTED = {
    "plain": "",
    "deletionVectors": "TBLPROPERTIES('delta.enableDeletionVectors'='true')",
    "changeDataFeed": "TBLPROPERTIES('delta.enableChangeDataFeed'='true')",
    "appendOnly": "TBLPROPERTIES('delta.appendOnly'='true')",
    "v2Checkpoint": "TBLPROPERTIES('delta.checkpointPolicy'='v2')",
}


@pytest.mark.parametrize("feature", REFUSED)
def test_tables_made_by_spark_that_are_refused(spark: SparkSession, tmp_path: Path, feature: str) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` (id BIGINT, name STRING) USING delta {REFUSED[feature]}")
    with pytest.raises(UnsupportedTableError) as caught:
        Driver(tmp_path / "t").claim()
    assert feature in caught.value.what and "sink 'out'" in caught.value.operator
    assert DeltaTable(tmp_path / "t").version() == 0


@pytest.mark.parametrize("feature", ACCEPTED)
def test_tables_made_by_spark_that_are_written(spark: SparkSession, tmp_path: Path, feature: str) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/t` (id BIGINT, name STRING) USING delta {ACCEPTED[feature]}")
    driver = Driver(tmp_path / "t", options={"log_checkpoint_interval": "2"})
    driver.claim()
    for epoch in range(4):
        driver.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
    assert sorted(row.id for row in spark.read.format("delta").load(f"{tmp_path}/t").collect()) == list(range(20))


def test_a_table_with_deleted_rows_keeps_them_deleted(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are marked as deleted beside their file, which stays live and is not an orphan."""
    place = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {place} (id BIGINT, name STRING) USING delta {ACCEPTED['deletionVectors']}")
    driver = Driver(tmp_path / "t")
    driver.claim()
    driver.run(0, numbered(0, 10))
    spark.sql(f"DELETE FROM {place} WHERE id = 3")
    second = Driver(tmp_path / "t", incarnation=2)
    second.claim()
    second.run(1, numbered(10, 12))
    assert sorted(row.id for row in spark.table(place).collect()) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]


def test_a_table_with_a_check_constraint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {place} (id BIGINT, name STRING) USING delta")
    spark.sql(f"ALTER TABLE {place} ADD CONSTRAINT positive CHECK (id > 0)")
    with pytest.raises(UnsupportedTableError, match="checkConstraints"):
        Driver(tmp_path / "t").claim()


def test_texts_of_char_and_varchar_are_written_and_read_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    place, names = f"delta.`{tmp_path}/t`", ["id", "p", "c", "v"]
    spark.sql(f"CREATE TABLE {place} (id INT, p CHAR(4), c CHAR(3), v VARCHAR(3)) USING delta PARTITIONED BY (p)")
    spark.sql(f"INSERT INTO {place} VALUES (1, 'ab', 'x', 'y ')")
    driver = Driver(tmp_path / "t", ddl("id int, p string, c string, v string"), options={"partition_by": "p"})
    driver.claim()
    driver.run(0, [{"id": 2, "p": "ab", "c": "x", "v": "y "}, dict.fromkeys(names)])
    with pytest.raises(DataError, match=r"'v' is varchar\(3\)"):
        driver.run(1, [{"id": 3, "p": "ab", "c": "x", "v": "y   "}])
    source = DeltaSnapshot({"uid": "in", "path": f"{tmp_path}/t"})
    source.declared = source.schema()
    read = [row for one in source.discover() for batch in source.read(one, 0, 9) for row in batch.to_pylist()]
    found = [row.asDict() for row in spark.table(place).collect()]
    padded = {"p": "ab  ", "c": "x  ", "v": "y "}
    expected = [dict.fromkeys(names), {"id": 1, **padded}, {"id": 2, **padded}]
    assert sorted(read, key=str) == sorted(found, key=str) == sorted(expected, key=str)
