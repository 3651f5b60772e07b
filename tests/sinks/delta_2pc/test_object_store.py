"""The way that object stores take: everything through `deltalake`'s stores, here the one that needs no service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_ext.sinks.contract import CommitOutcome
from spark_ext.storage import Location
from tests.sinks.delta_2pc.delta_kit import Driver, data_files, ddl, ids, numbered


@pytest.fixture(autouse=True)
def through_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep `file://` as it is, so that it is taken for an object store."""
    monkeypatch.setattr(Location, "of", staticmethod(_as_given))


def _as_given(path: str, storage_options: Mapping[str, str]) -> Location:
    return Location(path, storage_options)


def test_epochs_claims_and_cleaning(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    first = Driver(f"file://{tmp_path}/t", options={"log_checkpoint_interval": "2"})
    assert first.sink().location.local is None
    first.claim()
    for epoch in range(3):
        assert first.run(epoch, numbered(epoch * 5, epoch * 5 + 5)) is CommitOutcome.COMMITTED
    assert first.run(2, numbered(10, 15)) is CommitOutcome.ALREADY_COMMITTED
    live = data_files(tmp_path / "t")
    dead = {file.path for file in first.write(4, numbered(15, 20)) or ()}
    live -= dead
    assert dead & data_files(tmp_path / "t")
    second = Driver(f"file://{tmp_path}/t", incarnation=2)
    second.claim()
    assert not dead & data_files(tmp_path / "t")
    second.run(3, numbered(15, 20))
    assert ids(tmp_path / "t") == list(range(20))


def test_partition_folders_have_plain_names(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    schema = ddl("id long, p string")
    first = Driver(f"file://{tmp_path}/t", schema, options={"partition_by": "p"})
    first.claim()
    first.run(0, [{"id": n, "p": ["a/b", "ü ~%", None][n % 3]} for n in range(9)])
    folders = {name.rpartition("/")[0] for name in data_files(tmp_path / "t")}
    assert folders == {"p=a_2Fb", "p=_C3_BC_20_7E_25", "p=__HIVE_DEFAULT_PARTITION__"}
    dead = {file.path for file in first.write(1, [{"id": 9, "p": "a/b"}]) or ()}
    Driver(f"file://{tmp_path}/t", schema, incarnation=2, options=first.options).claim()
    assert not dead & data_files(tmp_path / "t")
    assert ids(tmp_path / "t") == list(range(9))


def test_a_missing_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    place = Location(f"file://{tmp_path}/t")
    place.folder.delete("nothing.parquet")
    assert place.folder.find("nothing") is None
    assert list(place.folder.files()) == []
