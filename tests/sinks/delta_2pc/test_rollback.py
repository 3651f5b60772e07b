"""Roll back of a table to where it was after an epoch, on real tables: what goes, what stays, and what is refused."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ext import failpoints
from spark_ext.delta import rollback
from spark_ext.delta.restored import CLAIM, SINK
from spark_ext.errors import ConfigurationError, FencedError, StateError, StorageError
from spark_ext.failpoints import FailPoint
from spark_ext.model.commits import CommitOutcome, Epoch
from tests.sinks.delta_2pc.delta_kit import NUMBERS, Restore, Start, begun, data_files, ddl, ids, numbered, table


def position(driver: Start, number: int) -> Any:
    return driver.sink().position(driver.epoch(number))


def others(path: Path, *numbers: int) -> None:
    for number in numbers:
        write_deltalake(path, pa.table({"id": [number], "name": [f"n{number}"]}), mode="append")


def version(path: Path) -> int:
    return DeltaTable(path).version()


def test_rows_after_the_position_go_and_the_new_lineage_runs(path: Path) -> None:
    first = begun(path, 0, 1, 2, 3)
    table_id = str(DeltaTable(path).metadata().id)
    assert position(first, 1) == {"version": 2, "table": table_id, "epoch": [first.epoch(1).application, 1]}
    restore = Restore(path)
    restore.restore(position(first, 1))
    assert ids(path) == [0, 1]
    entry = DeltaTable(path).history(1)[0]
    assert (entry["operation"], entry["operationParameters"]) == ("RESTORE", {"version": "2"})
    assert (entry[SINK], entry[CLAIM]) == ("out", "roll back of out to version 2, incarnation 2")
    assert restore.put(2) is CommitOutcome.COMMITTED
    assert restore.put(2) is CommitOutcome.ALREADY_COMMITTED
    again = Restore(path, incarnation=3)
    again.begin(previous=2)
    assert again.put(3, previous=2) is CommitOutcome.COMMITTED
    assert ids(path) == [0, 1, 2, 3]


def test_a_table_from_a_backup_that_was_written_on_is_refused(path: Path, tmp_path: Path) -> None:
    first = begun(path, 0)
    shutil.copytree(path, tmp_path / "backup")
    for number in (1, 2):
        first.put(number)
    place = position(first, 2)
    shutil.rmtree(path)
    shutil.move(tmp_path / "backup", path)
    others(path, 101, 102)
    assert version(path) == place["version"], "nothing has come since"
    with pytest.raises(StateError, match="is not the one of the savepoint, which held epoch 2"):
        Restore(path).restore(place)
    assert ids(path) == [0, 101, 102]


@pytest.mark.parametrize("point", [FailPoint.DELTA_BEFORE_ROLLBACK, FailPoint.DELTA_ROLLED_BACK])
def test_a_failed_restore_is_repeated(path: Path, monkeypatch: pytest.MonkeyPatch, point: FailPoint) -> None:
    there = position(begun(path, 0, 1, 2), 0)
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}=raise")
    with pytest.raises(StorageError, match="rolling back by incarnation 2"):
        Restore(path).restore(there)
    assert ids(path) == ([0, 1, 2] if point is FailPoint.DELTA_BEFORE_ROLLBACK else [0])
    again = Restore(path, incarnation=3)
    again.restore(there)
    assert again.put(1) is CommitOutcome.COMMITTED
    assert ids(path) == [0, 1]
    assert [entry["operation"] for entry in DeltaTable(path).history()].count("RESTORE") == 1


def test_a_target_not_yet_there_is_emptied_of_the_sinks_rows(path: Path) -> None:
    assert position(Start(path), 3) is None
    Restore(path).sink().roll_back(Restore(path).its_claim, None)
    assert not path.exists()
    first = begun(path, 0, 1)
    Restore(path).restore(None)
    assert ids(path) == []
    assert first.schema == NUMBERS
    Restore(path, incarnation=3, lineage=2).restore(None)
    assert [entry["operation"] for entry in DeltaTable(path).history()].count("RESTORE") == 1


def test_compaction_in_between_is_undone_with_the_rows_it_merged(path: Path) -> None:
    """The sink's uid shows that files are found though their names are spelled in another way."""
    first = Start(path, uid="a~b")
    first.begin()
    for number in range(3):
        first.put(number)
    there = position(first, 1)
    DeltaTable(path).optimize.compact()
    assert DeltaTable(path).history(1)[0]["operation"] == "OPTIMIZE"
    Restore(path, uid="a~b").restore(there)
    assert ids(path) == [0, 1]


def test_compaction_alone_is_nothing_to_take_away(path: Path) -> None:
    there = position(begun(path, 0, 1), 1)
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    Restore(path).restore(there)
    assert ids(path) == [0, 1]
    assert len(DeltaTable(path).file_uris()) == 1


def test_files_that_were_vacuumed_are_counted(path: Path) -> None:
    there = position(begun(path, 0, 1, 2), 1)
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    before = version(path)
    with pytest.raises(StateError, match="2 files of version 2 of it are missing: they were vacuumed"):
        Restore(path).restore(there)
    assert (ids(path), version(path)) == ([0, 1, 2], before), "nothing was claimed"


def test_files_forgotten_by_the_log_are_kept_until_the_roll_back(path: Path) -> None:
    first = begun(path, 0, 1, 2, table_properties='{"delta.deletedFileRetentionDuration": "interval 0 seconds"}')
    there = position(first, 1)
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    Restore(path).restore(there)
    assert ids(path) == [0, 1]
    assert len(data_files(path)) == 4


def test_the_way_out_that_the_error_names(path: Path) -> None:
    there = position(begun(path, 0, 1), 0)
    DeltaTable(path).delete("id = 0")
    with pytest.raises(StateError, match=r"(?s)\(DELETE\).* RESTORE the table to version 1 yourself"):
        Restore(path).restore(there)
    DeltaTable(path).restore(1)
    second = Restore(path)
    second.restore(there)
    second.put(1)
    assert ids(path) == [0, 1]


def test_a_table_that_is_gone_or_another_one_or_older_is_refused(path: Path, tmp_path: Path) -> None:
    first = begun(path, 0)
    shutil.copytree(path, tmp_path / "backup")
    first.put(1)
    there = position(first, 1)
    shutil.rmtree(path)
    for driver in (Restore(path).restore, lambda at: Restore(path).sink().roll_back(Restore(path).its_claim, at)):
        with pytest.raises(StateError, match="the table cannot be rolled back: the table does not exist"):
            driver(there)
    assert not path.exists()
    shutil.copytree(tmp_path / "backup", path)
    with pytest.raises(StateError, match="knows version 2 of it, and the newest one is 1"):
        Restore(path).restore(there)
    shutil.rmtree(path)
    others(path, *range(5))
    with pytest.raises(StateError, match=f"it is not the table of the savepoint: .* was {there['table']}"):
        Restore(path).restore(there)


def test_another_job_is_refused(path: Path) -> None:
    there = position(begun(path, 0, 1), 0)
    before = version(path)
    with pytest.raises(ConfigurationError, match="another job wrote under the sink uid 'out'"):
        Restore(path, job_id="job-2").restore(there)
    assert (ids(path), version(path)) == ([0, 1], before)


def test_a_table_that_forbids_it_is_refused(path: Path) -> None:
    first = begun(path, 0, 1, table_properties='{"delta.appendOnly": "true"}')
    with pytest.raises(StateError, match=r"delta\.appendOnly forbids"):
        Restore(path).restore(position(first, 0))
    Restore(path).restore(position(first, 1))


def test_a_log_that_was_cleaned_up_is_refused_by_name(path: Path) -> None:
    first = begun(path, 0, 1, 2, 3, 4)
    there, late = position(first, 0), position(first, 3)
    DeltaTable(path).create_checkpoint()
    log = path / "_delta_log"
    for number in range(4):
        (log / f"{number:020}.json").unlink()
    with pytest.raises(StateError, match="the file of version 3 has been cleaned up"):
        position(first, 0)
    assert {**late, **position(first, 3)} == late, "no more is read than is needed"
    with pytest.raises(StateError, match="the file of version 3 has been cleaned up"):
        Restore(path).restore(there)
    with pytest.raises(StateError, match="version 4 of it cannot be loaded"):
        Restore(path).restore(late)
    Restore(path).restore(position(first, 4))
    assert ids(path) == [0, 1, 2, 3, 4]


def interrupted(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen once between the look of a roll back and its commit."""
    pending = [act]

    def reach(point: FailPoint) -> None:
        if point is FailPoint.DELTA_BEFORE_ROLLBACK and pending:
            pending.pop()()

    monkeypatch.setattr(rollback, "reach", reach)


def test_a_newer_claim_fences_the_roll_back_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begun(path, 0, 1)
    interrupted(monkeypatch, Restore(path, incarnation=3, lineage=2).take)
    with pytest.raises(FencedError, match="incarnation 3"):
        Restore(path).restore(position(first, 0))
    assert ids(path) == [0, 1]
    with pytest.raises(FencedError, match="incarnation 3"):
        Restore(path).sink().check_roll_back(Restore(path).its_claim, position(first, 0))


def test_another_writer_between_look_and_commit_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begun(path, 0, 1)
    interrupted(monkeypatch, lambda: others(path, 90))
    with pytest.raises(StateError, match="another writer has changed its rows"):
        Restore(path).restore(position(first, 0))
    assert ids(path) == [0, 1, 90]


def test_a_compaction_between_look_and_commit_is_looked_at_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begun(path, 0, 1)
    interrupted(monkeypatch, DeltaTable(path).optimize.compact)
    Restore(path).restore(position(first, 0))
    assert ids(path) == [0]


def test_without_the_claim_nothing_is_taken_away(path: Path) -> None:
    first = begun(path, 0, 1)
    with pytest.raises(StateError, match="it does not hold the claim of incarnation 2"):
        Restore(path).sink().roll_back(Restore(path).its_claim, position(first, 0))
    assert ids(path) == [0, 1]


@pytest.mark.parametrize("rolled_back", [False, True])
def test_a_driver_of_the_old_lineage_that_wakes_up_cannot_commit(path: Path, rolled_back: bool) -> None:
    first = begun(path, 0, 1)
    there = position(first, 0)
    files = first.write(2, numbered(2, 3))
    assert files is not None
    Restore(path).take()
    if rolled_back:
        Restore(path).restore(there)
    with pytest.raises(FencedError, match="incarnation 2"):
        first.sink().commit(NUMBERS, first.epoch(2), [files])
    with pytest.raises(FencedError, match="incarnation 2"):
        first.begin()
    assert ids(path) == ([0] if rolled_back else [0, 1])


def test_the_old_lineage_cannot_simply_start_after_a_roll_back(path: Path) -> None:
    Restore(path).restore(position(begun(path, 0, 1), 0))
    with pytest.raises(StateError, match=r"was rolled back .* as lineage 1, and this start continues lineage 0"):
        Start(path, incarnation=3).begin()
    with pytest.raises(StateError, match="was rolled back"):
        Start(path, incarnation=3).begin(previous=1)
    Start(path, incarnation=3, lineage=1).begin()


@pytest.mark.parametrize("committed", [False, True], ids=["before_its_first_epoch", "after_it"])
@pytest.mark.parametrize("target", ["older", "rolled_back"])
def test_a_later_restore_by_a_user_is_noticed(path: Path, target: str, committed: bool) -> None:
    """Also one that brings back what was rolled back: the restored job writes those rows again."""
    first = begun(path, 0, 1, 2)
    second = Restore(path)
    second.restore(position(first, 1))
    if committed:
        second.put(2)
    else:
        second.sink().check(second.epoch(2))
    right = version(path)
    DeltaTable(path).restore(1 if target == "older" else 3)
    says = f"RESTORE the table to version {right}, the newest one that has all"
    with pytest.raises(StateError, match=says):
        second.put(3)
    with pytest.raises(StateError, match=says):
        Start(path, incarnation=3, lineage=1).begin()
    DeltaTable(path).restore(right)
    Start(path, incarnation=3, lineage=1).begin()


def test_later_columns_go_and_may_come_again_with_another_type(path: Path) -> None:
    """So rows are compared with the table's columns after the roll back, not before."""
    first = begun(path, 0, schema_evolution="add_columns")
    replace(first, schema=ddl("id long, name string, extra double")).put(1, rows=[{"id": 1, "name": "n", "extra": 0.5}])
    assert table(path).column_names == ["id", "name", "extra"]
    second = Restore(
        path, options={"schema_evolution": "add_columns"}, schema=ddl("id long, name string, extra string")
    )
    with pytest.raises(ConfigurationError, match="'extra' has the type double"):
        second.sink().validate(second.schema)
    second.restore(position(first, 0))
    assert table(path).column_names == ["id", "name"]
    second.sink().validate(second.schema)
    second.put(1, rows=[{"id": 1, "name": "n", "extra": "text"}])
    assert table(path).sort_by("id").column("extra").to_pylist() == [None, "text"]


def test_partitions_come_back_with_their_values(path: Path) -> None:
    first = Start(path, options={"partition_by": "name"})
    first.begin()
    for number, name in enumerate(["a b%/ü", None, "plain", "plain"]):
        first.put(number, rows=[{"id": number, "name": name}])
    before = DeltaTable(path, version=3).to_pyarrow_table().sort_by("id")
    DeltaTable(path).optimize.compact()
    Restore(path, options={"partition_by": "name"}).restore(position(first, 2))
    assert table(path).sort_by("id") == before


def test_another_sinks_epoch_in_the_table_is_another_writers(path: Path) -> None:
    first = begun(path, 0)
    there = position(first, 0)
    second = Start(path, uid="another", job_id="job-2", query_id="r")
    second.begin()
    second.put(7)
    first.put(1)
    assert Epoch("another", 0, "r", 7, 1).application != first.epoch(7).application
    with pytest.raises(StateError, match="another writer has changed its rows"):
        Restore(path).restore(there)


def two(path: Path) -> tuple[Start, Start]:
    """Two sinks of one job that write one table: `out`, and `also`, whose epochs have a hundred more."""
    first, second = begun(path), Start(path, uid="also", query_id="q2")
    second.begin()
    for driver, number in ((first, 0), (second, 100), (first, 1), (second, 101)):
        driver.put(number)
    return first, second


def put_back(path: Path, first: Any, second: Any) -> tuple[Restore, Restore]:
    made = Restore(path), Restore(path, uid="also", query_id="q2")
    claims = [
        replace(one.its_claim, siblings={other: place})
        for one, other, place in zip(made, ("also", "out"), (second, first), strict=True)
    ]
    for act in ("check_roll_back", "claim", "roll_back"):
        for one, claim, place in zip(made, claims, (first, second), strict=True):
            getattr(one.sink(), act)(claim, *(() if act == "claim" else (place,)))
    return made


def test_two_sinks_of_a_job_in_one_table_go_back_together(path: Path) -> None:
    first, second = two(path)
    at = [position(first, 1), position(second, 101)]
    for driver, number in ((first, 2), (second, 102), (first, 3)):
        driver.put(number)
    for _ in range(2):
        made = put_back(path, *at)
        assert ids(path) == [0, 1, 100, 101]
    assert [entry["operation"] for entry in DeltaTable(path).history()].count("RESTORE") == 2, "one for each sink"
    for driver, number in zip(made, (2, 102), strict=True):
        driver.begin(planned=number)
        assert driver.put(number) is CommitOutcome.COMMITTED
        assert driver.put(number) is CommitOutcome.ALREADY_COMMITTED
    assert ids(path) == [0, 1, 2, 100, 101, 102]


def test_two_sinks_whose_positions_are_in_no_version_together(path: Path) -> None:
    first, second = two(path)
    with pytest.raises(StateError, match=r"no version holds what all of them had written .*'also' committed after"):
        put_back(path, position(first, 0), position(second, 101))
    others(path, 90)
    at = position(first, 1), position(second, 100)
    second.put(102)
    with pytest.raises(StateError, match="another writer has changed its rows"):
        put_back(path, position(first, -1), position(second, -1))
    assert ids(path) == [0, 1, 90, 100, 101, 102] and at[0]["version"] > at[1]["version"]
