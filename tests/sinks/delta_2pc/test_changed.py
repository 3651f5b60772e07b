"""A table that others change: what a job's commits and claims notice in the table itself."""

import json
import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_ext.delta import publish
from spark_ext.delta.restored import HISTORY
from spark_ext.errors import StateError
from spark_ext.failpoints import FailPoint
from spark_ext.model.commits import CommitOutcome
from tests.sinks.delta_2pc.delta_kit import Driver, Start, begun, ids, numbered


def restored(path: Path, version: int) -> None:
    DeltaTable(path).restore(version)


def test_an_earlier_version_is_noticed_before_the_next_commit(path: Path) -> None:
    """RESTORE keeps the numbers under application ids and takes the rows away."""
    driver = begun(path, 0, 1, 2)
    restored(path, DeltaTable(path).version() - 2)
    for attempt in range(2):
        with pytest.raises(StateError, match="is a RESTORE of an earlier one"):
            driver.put(3, previous=2)
        with pytest.raises(StateError, match="is a RESTORE of an earlier one"):
            driver.sink().check(driver.epoch(3 + attempt, previous=2))
    for known in (2, None):  # an epoch that this state does not know is missed too
        with pytest.raises(StateError, match="is a RESTORE of an earlier one"):
            Start(path, incarnation=2).begin(previous=known)
    assert ids(path) == [0]
    after_reset = Start(path, incarnation=2, query_id="another", lineage=1)
    after_reset.begin()
    assert after_reset.put(0) is CommitOutcome.COMMITTED


def test_a_restore_that_brings_the_epochs_back_is_the_way_out(path: Path) -> None:
    driver = begun(path, 0, 1, 2)
    newest = DeltaTable(path).version()
    restored(path, newest - 2)
    with pytest.raises(StateError, match=f"RESTORE the table to version {newest}, the newest one that has all"):
        driver.put(3, previous=2)
    restored(path, newest)
    again = Start(path, incarnation=2)
    again.begin(previous=2)
    again.put(3, previous=2)
    assert ids(path) == [0, 1, 2, 3]


def test_a_restore_to_a_time_is_refused_but_to_a_version_helps(path: Path) -> None:
    driver = begun(path, 0)
    newest = DeltaTable(path).version()
    DeltaTable(path).restore(datetime.fromtimestamp(DeltaTable(path).history()[-1]["timestamp"] / 1000, timezone.utc))
    with pytest.raises(StateError, match="does not show whether that one has all commits of this sink"):
        driver.put(1, previous=0)
    restored(path, newest)
    driver.put(1, previous=0)
    assert ids(path) == [0, 1]


@pytest.mark.parametrize("metadata", [True, False], ids=["as_delta_rs_writes_it", "without_metadata"])
def test_no_append_passes_a_later_restore(path: Path, monkeypatch: pytest.MonkeyPatch, metadata: bool) -> None:
    """Each commit vouches for all earlier ones. Without metadata, removed files alone are the conflict."""
    driver = begun(path, 0)
    pending = ["restore"]

    def reach(point: FailPoint) -> None:
        if point is FailPoint.DELTA_BEFORE_COMMIT and pending:
            pending.clear()
            restored(path, 0)
            if not metadata:
                entry = path / "_delta_log" / f"{DeltaTable(path).version():020}.json"
                actions = [json.loads(line) for line in entry.read_text().splitlines()]
                kept = [action for action in actions if not action.keys() & {"metaData", "protocol"}]
                assert {key for action in kept for key in action} == {"commitInfo", "remove"}
                entry.write_text("\n".join(json.dumps(action) for action in kept))

    monkeypatch.setattr(publish, "reach", reach)
    with pytest.raises(StateError, match="is a RESTORE of an earlier one"):
        driver.put(1, previous=0)
    assert not pending
    assert DeltaTable(path).history(1)[0]["operation"] == "RESTORE", "nothing was written"


def test_a_commit_during_the_examination_shifts_no_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """delta-rs numbers the commits too low then, and the RESTORE would seem to lead to a version with all epochs."""
    driver = begun(path, 0, 1)
    restored(path, 1)
    asked: list[int | None] = []
    history = DeltaTable.history

    def disturbed(table: DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
        asked.append(limit)
        if len(asked) <= 3:
            Driver(path, uid="other", incarnation=0).run(len(asked), numbered(90 + len(asked), 91 + len(asked)))
        return history(table, limit)

    monkeypatch.setattr(DeltaTable, "history", disturbed)
    with pytest.raises(StateError, match=r"version 3 of the table is a RESTORE .* lacks .* in version 2"):
        driver.put(2, previous=1)
    assert len(asked) == 4, "once for the look, then until nothing came in between"


def test_an_epoch_reads_the_commits_since_the_last_look(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = begun(path)
    asked: list[int | None] = []
    history = DeltaTable.history

    def counted(table: DeltaTable, limit: int | None = None) -> list[dict[str, Any]]:
        asked.append(limit)
        return history(table, limit)

    monkeypatch.setattr(DeltaTable, "history", counted)
    for number in range(3):
        driver.put(number)
    assert asked == [HISTORY, 1, 1]
    DeltaTable(path).delete("id = 0")
    driver.put(3)
    assert asked[3:] == [2]


def test_a_backup_that_lacks_nothing_of_the_job_is_accepted(path: Path, tmp_path: Path) -> None:
    driver = begun(path, 0)
    shutil.copytree(path, tmp_path / "backup")
    for _ in range(2):
        DeltaTable(path).delete("id = 0")
        driver.sink().check(driver.epoch(1, previous=0))
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    driver.put(1, previous=0)
    assert ids(path) == [0, 1]


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": "id"}])
def test_a_power_failure_that_took_rows_of_the_newest_epoch_is_noticed(
    path: Path, damage: Callable[[Path], object], options: dict[str, str]
) -> None:
    driver = Start(path, options=options)
    driver.begin()
    driver.put(0)
    before = set(path.glob("*.parquet"))
    driver.put(1)
    version = DeltaTable(path).version()
    (newest,) = set(path.glob("*.parquet")) - before
    damage(newest)
    again = Start(path, incarnation=2, options=options)
    with pytest.raises(StateError, match=f"version {version} of the table has lost rows: its file {newest.name}"):
        again.begin()
    (path / "_delta_log" / f"{version:020}.json").unlink()  # as the error says
    again.begin()
    again.put(1)
    assert ids(path) == [0, 1]


def test_a_new_table_that_outgrew_the_kept_handle_is_another_one(path: Path) -> None:
    driver = begun(path, 0)
    shutil.rmtree(path)
    other = Driver(path, uid="other", incarnation=0)
    for number in range(8):
        other.run(number, numbered(100 + number, 101 + number))
    with pytest.raises(StateError, match="it does not hold the claim of incarnation 1"):
        driver.put(1)
    assert ids(path) == list(range(100, 108))


def test_a_missing_query_is_seen_though_no_table_lists_its_ids(path: Path) -> None:
    begun(path).put(5)
    with pytest.raises(StateError, match="of this sink, written by a query whose checkpoint directory is not the"):
        Start(path, incarnation=2, query_id="another").begin()
    Start(path, incarnation=2).begin(previous=5)
