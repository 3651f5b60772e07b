"""Cleaning after dead incarnations: what goes and, above all, what stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_ext.delta import upkeep
from spark_ext.errors import FencedError
from spark_ext.sinks.contract import Claim
from spark_ext.storage import Location
from tests.sinks.delta_2pc.delta_kit import Driver, data_files, ddl, ids, numbered


def staged(driver: Driver, epoch: int, start: int, attempt: int = 0) -> set[str]:
    """Files that a driver wrote and did not commit."""
    return {file.path for file in driver.write(epoch, numbered(start, start + 5), attempt=attempt) or ()}


def test_a_dead_incarnations_files_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = Driver(path)
    first.claim()
    first.run(0, numbered(0, 5))
    live = data_files(path)
    dead = staged(first, 1, 5) | staged(first, 1, 5, attempt=1) | staged(first, 0, 0, attempt=7)
    other = staged(Driver(path, uid="other"), 1, 5)
    almost = staged(Driver(path, uid="out-i1"), 1, 5)
    unfenced = staged(Driver(path, incarnation=0), 1, 5)
    mine = staged(Driver(path, incarnation=2), 1, 5)
    foreign = {"part-00000-c000.snappy.parquet", "notes.txt"}
    for name in foreign:
        (path / name).write_text("somebody else's")
    assert dead <= data_files(path)
    Driver(path, incarnation=2).claim()
    kept = live | other | almost | unfenced | mine | {"part-00000-c000.snappy.parquet"}
    assert data_files(path) == kept
    assert (path / "notes.txt").exists()
    assert ids(path) == list(range(5))


def test_partition_folders_are_searched_and_hidden_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = Driver(path, ddl("id long, p string"), options={"partition_by": "p"})
    first.claim()
    first.run(0, [{"id": n, "p": "a/b c~" if n % 2 else None} for n in range(10)])
    live = data_files(path)
    assert len(live) == 2
    first.write(1, [{"id": n, "p": "a/b c~"} for n in range(10)])
    hidden = path / "_change_data" / Path(next(iter(live))).name.replace("-e0-", "-e9-")
    hidden.parent.mkdir()
    hidden.write_text("a file of another writer's feature")
    second = Driver(path, first.schema, incarnation=2, options=first.options)
    second.claim()
    assert data_files(path) == live | {str(hidden.relative_to(path))}
    assert ids(path) == list(range(10))


def test_an_uncommitted_partition_column_in_a_folder_that_starts_with_an_underscore(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = Driver(path, ddl("id long, _p string"), options={"partition_by": "_p"})
    first.claim()
    first.write(0, [{"id": 1, "_p": "a"}])
    assert len(data_files(path)) == 1
    Driver(path, first.schema, incarnation=2, options=first.options).claim()
    assert data_files(path) == set()


def test_files_removed_by_compaction_are_vacuums(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = Driver(path)
    first.claim()
    for epoch in range(3):
        first.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
    before, version = data_files(path), DeltaTable(path).version()
    DeltaTable(path).optimize.compact()
    dead = staged(first, 3, 15)
    Driver(path, incarnation=2).claim()
    assert before <= data_files(path)
    assert not dead & data_files(path)
    assert ids(path) == list(range(15))
    older = DeltaTable(path, version=version).to_pyarrow_table()
    assert sorted(older.column("id").to_pylist()) == list(range(15)), "a slow reader still reads its version"


def test_files_that_a_log_checkpoint_holds_are_live(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = Driver(path)
    first.claim()
    for epoch in range(3):
        first.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    dead = staged(first, 3, 15)
    Driver(path, incarnation=2).claim()
    assert not dead & data_files(path)
    assert ids(path) == list(range(15))


def test_a_fenced_claim_deletes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    Driver(path, incarnation=3).claim()
    dead = staged(Driver(path), 0, 0)
    with pytest.raises(FencedError):
        Driver(path, incarnation=2).claim()
    assert data_files(path) == dead


def test_a_uid_with_a_tilde(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = Driver(path, uid="flights~daily")
    first.claim()
    first.run(0, numbered(0, 5))
    dead = staged(first, 1, 5)
    Driver(path, uid="flights~daily", incarnation=2).claim()
    assert not dead & data_files(path)
    assert ids(path) == list(range(5))


def test_the_table_is_not_listed_for_live_files_when_nothing_can_be_an_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    driver = Driver(path)
    driver.claim()
    driver.run(0, numbered(0, 5))

    def refuse(table: DeltaTable) -> frozenset[str]:
        raise AssertionError("the table's files were asked for")

    monkeypatch.setattr(upkeep, "committed_names", refuse)
    found = DeltaTable(path)
    claim = Claim("out", "job", "job-1", 1, 0)
    assert upkeep.clean(Location(str(path)), found, claim, "me") == 0


def test_through_a_uri(tmp_path: Path) -> None:
    """The path that object stores take, on the one store that needs no service."""
    path = tmp_path / "a folder" / "t"
    first = Driver(f"file://{path}".replace(" ", "%20"))
    first.claim()
    first.run(0, numbered(0, 5))
    dead = staged(first, 1, 5)
    Driver(path, incarnation=2).claim()
    assert not dead & data_files(path)
    assert ids(path) == list(range(5))
