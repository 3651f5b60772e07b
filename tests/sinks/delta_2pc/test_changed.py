"""A table that others change: what a job's commits and claims notice in the table itself."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_ext.errors import StateError
from spark_ext.model.commits import Claim, CommitOutcome, Epoch
from tests.sinks.delta_2pc.delta_kit import NUMBERS, Driver, ids, numbered


@dataclass
class Start(Driver):
    """A driver of a start that has a random number."""

    lineage: int = 0

    @property
    def start(self) -> int:
        return 70 + self.incarnation

    def epoch(self, number: int, previous: int | None = None) -> Epoch:
        mine = (self.uid, self.lineage, self.query_id, number, self.incarnation)
        return Epoch(*mine, start=self.start, previous=previous)

    def begin(self, previous: int | None = None) -> None:
        sink = self.sink()
        sink.validate(self.schema)
        mine = Claim(self.uid, "job", self.job_id, self.incarnation, self.lineage, start=self.start)
        sink.claim(replace(mine, query_id=self.query_id, planned=9, previous=previous))

    def put(self, number: int, previous: int | None = None) -> CommitOutcome:
        files = self.write(number, numbered(number, number + 1))
        assert files is not None
        return self.sink().commit(NUMBERS, self.epoch(number, previous), [files])


def restored(path: Path, version: int) -> None:
    DeltaTable(path).restore(version)


def test_a_restore_to_an_earlier_version_is_noticed_before_the_next_commit(tmp_path: Path) -> None:
    """Finding 43: RESTORE keeps the numbers under application ids and takes the rows away."""
    path = tmp_path / "t"
    driver = Start(path)
    driver.begin()
    for number in range(3):
        driver.put(number)
    restored(path, DeltaTable(path).version() - 2)
    for attempt in range(2):
        with pytest.raises(StateError, match="is a RESTORE of an earlier one"):
            driver.put(3, previous=2)
        with pytest.raises(StateError, match="is a RESTORE of an earlier one"):
            driver.sink().check(driver.epoch(3 + attempt, previous=2))
    with pytest.raises(StateError, match="is a RESTORE of an earlier one"):
        Start(path, incarnation=2).begin(previous=2)
    assert ids(path) == [0]
    after_reset = Start(path, incarnation=2, query_id="another", lineage=1)
    after_reset.begin()
    assert after_reset.put(0) is CommitOutcome.COMMITTED


def test_changes_of_rows_by_others_are_theirs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    driver = Start(path)
    driver.begin()
    driver.put(0)
    DeltaTable(path).delete("id = 0")
    assert driver.put(1, previous=0) is CommitOutcome.COMMITTED
    assert ids(path) == [1]


def test_a_table_that_was_made_anew_and_has_grown_beyond_the_kept_handle_is_another_one(tmp_path: Path) -> None:
    """Finding 43: the handle took the new table's commits for those of the old one."""
    path = tmp_path / "t"
    driver = Start(path)
    driver.begin()
    driver.put(0)
    shutil.rmtree(path)
    other = Driver(path, uid="other", incarnation=0)
    for number in range(8):
        other.run(number, numbered(100 + number, 101 + number))
    with pytest.raises(StateError, match="it does not hold the claim of incarnation 1"):
        driver.put(1)
    assert ids(path) == list(range(100, 108))


def test_a_table_whose_log_alone_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """Finding 43: 2,800 of 3,000 rows, and a job that was FINISHED."""
    path = tmp_path / "t"
    driver = Start(path)
    driver.begin()
    driver.put(0)
    shutil.rmtree(path / "_delta_log")
    with pytest.raises(StateError, match="there is no table"):
        driver.put(1)
    assert not (path / "_delta_log").exists()


def test_a_query_that_is_gone_is_seen_though_a_table_does_not_list_its_ids(tmp_path: Path) -> None:
    """Finding 33: the number of the newest epoch carries that of its query."""
    path = tmp_path / "t"
    driver = Start(path)
    driver.begin()
    driver.put(5)
    with pytest.raises(StateError, match="of this sink, written by a query whose checkpoint directory is not the"):
        Start(path, incarnation=2, query_id="another").begin()
    Start(path, incarnation=2).begin(previous=5)
