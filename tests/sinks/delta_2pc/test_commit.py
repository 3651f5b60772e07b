"""Phase two of `delta_2pc`: each epoch once, the table's creation, its schema, and tables that demand too much."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType, TimestampNTZType

from spark_ext.delta import sink_table, upkeep
from spark_ext.delta.features import TableFacts, demands
from spark_ext.errors import ConfigurationError, DataError, UnsupportedTableError
from spark_ext.sinks.contract import CommitOutcome, Epoch
from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.storage import Location
from tests.sinks.delta_2pc.delta_kit import Driver, ddl, ids, numbered, table

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED


def test_another_query_id_is_another_sequence(tmp_path: Path) -> None:
    assert Driver(tmp_path / "t", incarnation=0).run(0, numbered(0, 5)) is COMMITTED
    assert Driver(tmp_path / "t", incarnation=0, query_id="other").run(0, numbered(5, 7)) is COMMITTED
    assert ids(tmp_path / "t") == list(range(7))


def test_outside_a_job_there_is_no_fence(tmp_path: Path) -> None:
    Driver(tmp_path / "t", incarnation=0).run(0, numbered(0, 1))
    found = DeltaTable(tmp_path / "t")
    assert found.transaction_version("fence:out") is None
    assert found.transaction_version("spark_ext:out:0:q") == 0


def test_the_commit_is_described_in_the_history(tmp_path: Path) -> None:
    Driver(tmp_path / "t", incarnation=3).run(7, numbered(0, 5))
    newest = DeltaTable(tmp_path / "t").history(1)[0]
    assert newest["operationMetrics"]["numOutputRows"] == "5"
    assert newest["isBlindAppend"] is True
    about = {"sink": "out", "queryId": "q", "epoch": 7, "incarnation": 3, "lineage": 0}
    assert json.loads(newest["userMetadata"]) == about


def test_one_epoch_committed_by_many_at_once_is_there_once(tmp_path: Path) -> None:
    drivers = [Driver(tmp_path / "t", incarnation=0) for _ in range(6)]
    prepared = [driver.write(0, numbered(0, 5)) for driver in drivers]

    def commit(number: int) -> CommitOutcome:
        target, epoch = drivers[number].sink()._target, Epoch("out", 0, "q", 0, 0)
        return target.commit(drivers[number].schema, epoch, prepared[number] or ())[0]

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(commit, range(6)))
    assert sorted(outcome.value for outcome in outcomes) == sorted([COMMITTED.value] + [ALREADY.value] * 5)
    assert ids(tmp_path / "t") == list(range(5))


def test_the_table_is_created_with_its_layout(tmp_path: Path) -> None:
    driver = Driver(
        tmp_path / "t",
        ddl("id long not, p string"),
        options={"partition_by": "p", "table_properties": '{"delta.appendOnly": "true"}', "indexed_columns": "5"},
    )
    driver.run(0, [{"id": 1, "p": "a"}])
    found = DeltaTable(tmp_path / "t")
    assert found.metadata().partition_columns == ["p"]
    assert found.metadata().configuration == {"delta.appendOnly": "true", "delta.dataSkippingNumIndexedCols": "5"}
    assert all(field.nullable for field in found.schema().fields)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    with pytest.raises(ConfigurationError, match="a part of the path is a file"):
        Driver(tmp_path / "t").claim()


def test_a_bad_table_property_is_refused(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", options={"table_properties": '{"delta.nonsense": "1"}'})
    with pytest.raises(ConfigurationError, match="could not be created"):
        driver.claim()


@pytest.mark.parametrize("given", ["not json", '["a"]', '{"a": 1}'])
def test_options_that_are_no_json_object_are_refused_unshown(tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigurationError, match="JSON object") as caught:
        Driver(tmp_path / "t", options={"storage_options": given}).sink()
    assert given not in str(caught.value)


def existing(path: Path, *fields: Field, partition_by: list[str] | None = None) -> DeltaTable:
    return DeltaTable.create(path, Schema(list(fields)), partition_by=partition_by)


def column(name: str, kind: str, nullable: bool = True) -> Field:
    return Field(name, PrimitiveType(kind), nullable=nullable)


MISFITS = [
    ([column("id", "integer")], "'id' has the type int in the table, and bigint in the query"),
    ([column("ID", "long"), column("name", "string")], "'id' is spelled 'ID' in the table"),
    ([column("id", "long")], "'name' (string) is not in the table"),
    ([column("id", "long", False), column("name", "string")], "'id' may be null in the query"),
    ([column("id", "long"), column("name", "string"), column("x", "long", False)], "'x' may not be null in the table"),
]


@pytest.mark.parametrize(("fields", "message"), MISFITS, ids=[message for _, message in MISFITS])
def test_rows_that_do_not_fit_the_table_are_refused_by_name(tmp_path: Path, fields: list[Field], message: str) -> None:
    existing(tmp_path / "t", *fields)
    driver = Driver(tmp_path / "t", incarnation=0)
    for refuse in (lambda: driver.sink().validate(driver.schema), lambda: driver.run(0, numbered(0, 1))):
        with pytest.raises(ConfigurationError) as caught:
            refuse()
        assert message in str(caught.value)
    assert DeltaTable(tmp_path / "t").version() == 0


def test_other_partitioning_is_refused_by_name(tmp_path: Path) -> None:
    existing(tmp_path / "t", column("id", "long"), column("name", "string"), partition_by=["name"])
    with pytest.raises(ConfigurationError, match=r"partitioned by \(name\).*says \(\)"):
        Driver(tmp_path / "t").claim()


def test_columns_that_the_query_does_not_give_are_null(tmp_path: Path) -> None:
    existing(tmp_path / "t", column("extra", "double"), column("name", "string"), column("id", "long"))
    Driver(tmp_path / "t").run(0, numbered(0, 2))
    assert table(tmp_path / "t").select(["id", "name", "extra"]).to_pylist() == [
        {"id": n, "name": f"n{n}", "extra": None} for n in range(2)
    ]


def test_schema_evolution_adds_columns_and_nothing_else(tmp_path: Path) -> None:
    Driver(tmp_path / "t").run(0, numbered(0, 1))
    wider = Driver(
        tmp_path / "t", ddl("id long, name string, extra double not"), options={"schema_evolution": "add_columns"}
    )
    wider.run(1, [{"id": 1, "name": "n1", "extra": 0.5}])
    Driver(tmp_path / "t").run(2, numbered(2, 3))
    assert sorted(table(tmp_path / "t").to_pylist(), key=lambda row: row["id"]) == [
        {"id": 0, "name": "n0", "extra": None},
        {"id": 1, "name": "n1", "extra": 0.5},
        {"id": 2, "name": "n2", "extra": None},
    ]
    changed = Driver(tmp_path / "t", ddl("id long, name long"), options={"schema_evolution": "add_columns"})
    with pytest.raises(ConfigurationError, match="'name' has the type string in the table"):
        changed.run(3, [{"id": 3, "name": 4}])


def test_a_new_timestamp_ntz_column_needs_the_feature(tmp_path: Path) -> None:
    Driver(tmp_path / "t").run(0, numbered(0, 1))
    wider = Driver(tmp_path / "t", ddl("id long, at timestamp_ntz"), options={"schema_evolution": "add_columns"})
    with pytest.raises(ConfigurationError, match="timestampNtz"):
        wider.claim()


def test_the_log_is_checkpointed_behind_the_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path / "t", options={"log_checkpoint_interval": "4"})
    place = Location.of(str(tmp_path / "t"), {})
    driver.claim()
    for epoch in range(5):
        driver.run(epoch, numbered(epoch, epoch + 1))
        for thread in list(upkeep._running.values()):
            thread.join()
    assert upkeep.newest_checkpoint(place) == 4
    # A process that starts anew continues from what is in the table.
    monkeypatch.setattr(upkeep, "_newest", {})
    monkeypatch.setattr(upkeep, "_running", {})
    monkeypatch.setattr(sink_table, "_kept", sink_table._Kept())
    driver.run(5, numbered(5, 6))
    assert not upkeep._running
    driver.run(6, numbered(6, 7))
    driver.run(7, numbered(7, 8))
    for thread in list(upkeep._running.values()):
        thread.join()
    assert upkeep.newest_checkpoint(place) == 8
    assert driver.run(7, numbered(7, 8)) is ALREADY, "the epochs' ids outlive the log's files"
    assert ids(tmp_path / "t") == list(range(8))


def test_a_checkpoint_that_fails_is_logged_and_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    thread = upkeep.checkpoint_if_due(Location(str(tmp_path / "none")), 100, 100)
    assert thread is not None
    thread.join()
    assert "could not be checkpointed" in caplog.text


def facts(version: int, *features: str, notes: dict[str, Any] | None = None, **configuration: str) -> TableFacts:
    schema = StructType().add("s", StructType().add("id", LongType(), True, notes or {}))
    return TableFacts(version, frozenset(features), {k.replace("__", "."): v for k, v in configuration.items()}, schema)


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
def test_used_features(version: int, notes: dict[str, Any], configuration: dict[str, str], feature: str) -> None:
    assert demands(facts(version, notes=notes, **configuration)) == (feature,)


def test_what_is_not_known_is_demanded_and_what_is_old_or_off_is_not() -> None:
    assert [demands(facts(version)) for version in range(1, 6)] == [()] * 5
    assert demands(facts(7, "columnMapping", delta__columnMapping__mode="none")) == ()
    for feature in ("rowTracking", "clustering", "inCommitTimestamp", "somethingNew"):
        assert demands(facts(7, "appendOnly", feature)) == (feature,)
    (found,) = demands(facts(2, delta__appendOnly="true"), replaces=True)
    assert found.startswith("delta.appendOnly") and demands(facts(2, delta__appendOnly="true")) == ()


def test_a_demand_on_a_running_query_is_refused_at_the_commit(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t").claim()
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
        Driver(tmp_path / "t", schema, options={"schema_evolution": "add_columns"}).sink().validate(schema)


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
    driver = Driver(tmp_path / "t", options={"log_checkpoint_interval": "2"}).claim()
    for epoch in range(4):
        driver.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
    assert sorted(row.id for row in spark.read.format("delta").load(f"{tmp_path}/t").collect()) == list(range(20))


def test_a_table_with_a_check_constraint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {place} (id BIGINT, name STRING) USING delta")
    spark.sql(f"ALTER TABLE {place} ADD CONSTRAINT positive CHECK (id > 0)")
    with pytest.raises(UnsupportedTableError, match="checkConstraints"):
        Driver(tmp_path / "t").claim()


def test_char_and_varchar_are_written_and_read_as_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    place, names = f"delta.`{tmp_path}/t`", ["id", "p", "c", "v"]
    spark.sql(f"CREATE TABLE {place} (id INT, p CHAR(4), c CHAR(3), v VARCHAR(3)) USING delta PARTITIONED BY (p)")
    spark.sql(f"INSERT INTO {place} VALUES (1, 'ab', 'x', 'y ')")
    driver = Driver(tmp_path / "t", ddl("id int, p string, c string, v string"), options={"partition_by": "p"}).claim()
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
