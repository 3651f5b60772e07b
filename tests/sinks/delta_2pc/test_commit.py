"""Phase two of `delta_2pc`: each epoch once, the table's creation, its schema."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.schema import PrimitiveType

from spark_ext.delta import sink_table, upkeep
from spark_ext.errors import ConfigurationError, StorageError
from spark_ext.sinks.contract import CommitOutcome
from spark_ext.storage import Location
from tests.sinks.delta_2pc.delta_kit import Driver, ddl, ids, numbered, table

COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED


def test_epochs_add_up(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t")
    driver.claim()
    assert [driver.run(epoch, numbered(epoch * 5, epoch * 5 + 5)) for epoch in range(4)] == [COMMITTED] * 4
    assert ids(tmp_path / "t") == list(range(20))


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t")
    driver.claim()
    first, second = driver.write(0, numbered(0, 5), 0), driver.write(0, numbered(5, 9), 1)
    assert ids(tmp_path / "t") == []
    driver.commit(0, first, second)
    assert ids(tmp_path / "t") == list(range(9))


def test_a_repeated_epoch_is_distinguished_from_a_new_one(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t")
    driver.claim()
    prepared = driver.write(0, numbered(0, 5))
    assert driver.commit(0, prepared) is COMMITTED
    assert driver.commit(0, prepared) is ALREADY
    assert driver.run(0, numbered(0, 5)) is ALREADY, "prepared anew"
    assert driver.run(1, numbered(5, 9)) is COMMITTED
    assert driver.run(0, numbered(0, 5)) is ALREADY, "an earlier epoch"
    assert ids(tmp_path / "t") == list(range(9))


def test_another_query_id_is_another_sequence(tmp_path: Path) -> None:
    assert Driver(tmp_path / "t", incarnation=0).run(0, numbered(0, 5)) is COMMITTED
    assert Driver(tmp_path / "t", incarnation=0, query_id="other").run(0, numbered(5, 7)) is COMMITTED
    assert ids(tmp_path / "t") == list(range(7))


def test_a_commit_that_raised_after_its_effect_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tmp_path / "t")
    driver.claim()
    prepared = driver.write(0, numbered(0, 5))
    monkeypatch.setenv("SPARK_EXT_FAILPOINTS", "delta.committed=raise")
    with pytest.raises(StorageError, match="fail point"):
        driver.commit(0, prepared)
    assert driver.commit(0, prepared) is ALREADY
    assert ids(tmp_path / "t") == list(range(5))


def test_outside_a_job_there_is_no_fence(tmp_path: Path) -> None:
    Driver(tmp_path / "t", incarnation=0).run(0, numbered(0, 1))
    found = DeltaTable(tmp_path / "t")
    assert found.transaction_version("fence:out") is None
    assert found.transaction_version("spark_ext:out:0:q") == 0


def test_the_commit_is_described_in_the_history(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", incarnation=3)
    driver.run(7, numbered(0, 5))
    newest = DeltaTable(tmp_path / "t").history(1)[0]
    assert newest["operationMetrics"]["numOutputRows"] == "5"
    assert newest["isBlindAppend"] is True
    assert json.loads(newest["userMetadata"]) == {
        "sink": "out",
        "queryId": "q",
        "epoch": 7,
        "incarnation": 3,
        "lineage": 0,
    }


def test_one_epoch_committed_by_many_at_once_is_there_once(tmp_path: Path) -> None:
    """Threads with handles of their own, as processes have them; the first also creates the table."""
    drivers = [Driver(tmp_path / "t", incarnation=0) for _ in range(6)]
    prepared = [driver.write(0, numbered(0, 5)) for driver in drivers]

    def commit(number: int) -> CommitOutcome:
        target = drivers[number].sink()._target
        outcome: CommitOutcome = target.commit(
            drivers[number].schema, _epoch(drivers[number], 0), prepared[number] or ()
        )[0]
        return outcome

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(commit, range(6)))
    assert sorted(outcome.value for outcome in outcomes) == sorted([COMMITTED.value] + [ALREADY.value] * 5)
    assert ids(tmp_path / "t") == list(range(5))


def _epoch(driver: Driver, number: int) -> Any:
    from spark_ext.sinks.contract import Epoch

    return Epoch(driver.uid, 0, driver.query_id, number, driver.incarnation)


@pytest.mark.slow(1, "32 commits to one Delta log, of four threads at once")
def test_sinks_of_other_uids_write_the_same_table_at_once(tmp_path: Path) -> None:
    def epochs(uid: int) -> None:
        driver = Driver(tmp_path / "t", uid=f"out-{uid}", job_id=f"job-{uid}")
        driver.claim()
        for epoch in range(8):
            start = uid * 1000 + epoch * 10
            assert driver.run(epoch, numbered(start, start + 10)) is COMMITTED

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(epochs, range(4)))
    assert ids(tmp_path / "t") == [uid * 1000 + n for uid in range(4) for n in range(80)]


def test_a_table_that_was_deleted_and_made_anew_is_seen(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", incarnation=0)
    for epoch in range(3):
        driver.run(epoch, numbered(epoch, epoch + 1))
    shutil.rmtree(tmp_path / "t")
    assert driver.run(3, numbered(3, 4)) is COMMITTED
    assert ids(tmp_path / "t") == [3]


def test_the_kept_handle_sees_what_others_committed(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", incarnation=0)
    driver.run(0, numbered(0, 1))
    DeltaTable(tmp_path / "t").create_write_transaction(
        [],
        mode="append",
        schema=DeltaTable(tmp_path / "t").schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction("spark_ext:out:0:q", 5)]),
    )
    assert driver.run(5, numbered(5, 6)) is ALREADY
    assert driver.run(6, numbered(6, 7)) is COMMITTED
    assert ids(tmp_path / "t") == [0, 6]


# -- creation and schema ----------------------------------------------------------------------------------------------


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
def test_options_that_are_no_json_object_are_refused_and_not_shown(tmp_path: Path, given: str) -> None:
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
    (
        [column("id", "long"), column("name", "string"), column("x", "long", False)],
        "'x' may not be null in the table, and the query does not have it",
    ),
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


def test_merge_schema_adds_columns_and_nothing_else(tmp_path: Path) -> None:
    Driver(tmp_path / "t").run(0, numbered(0, 1))
    wider = Driver(tmp_path / "t", ddl("id long, name string, extra double not"), options={"merge_schema": "true"})
    wider.run(1, [{"id": 1, "name": "n1", "extra": 0.5}])
    Driver(tmp_path / "t").run(2, numbered(2, 3))
    assert sorted(table(tmp_path / "t").to_pylist(), key=lambda row: row["id"]) == [
        {"id": 0, "name": "n0", "extra": None},
        {"id": 1, "name": "n1", "extra": 0.5},
        {"id": 2, "name": "n2", "extra": None},
    ]
    changed = Driver(tmp_path / "t", ddl("id long, name long"), options={"merge_schema": "true"})
    with pytest.raises(ConfigurationError, match="'name' has the type string in the table"):
        changed.run(3, [{"id": 3, "name": 4}])


def test_a_new_timestamp_ntz_column_needs_the_feature(tmp_path: Path) -> None:
    Driver(tmp_path / "t").run(0, numbered(0, 1))
    wider = Driver(tmp_path / "t", ddl("id long, at timestamp_ntz"), options={"merge_schema": "true"})
    with pytest.raises(ConfigurationError, match="timestampNtz"):
        wider.claim()


# -- the log ----------------------------------------------------------------------------------------------------------


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
