"""An older incarnation that wakes up: real processes, frozen at the worst moments, and what they may not do.

Each test freezes a driver of incarnation 1, lets incarnation 2 claim the table and clean up, and wakes the first. The
plainest of them, frozen just before its commit, is a line of the conformance tests.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_ext.errors import ConfigurationError, FencedError
from spark_ext.sinks.contract import CommitOutcome
from spark_ext.testing.children import Child, frozen, was_fenced
from tests.sinks.delta_2pc.delta_kit import Driver, data_files, ddl, ids, numbered, table
from tests.support.waiting import until

WIDER = ddl("id long, name string, extra double")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def first_epoch(path: Path) -> None:
    Driver(path).run(0, numbered(0, 5))
    print("committed", flush=True)


def wider_epoch(path: Path) -> None:
    Driver(path, WIDER, options={"merge_schema": "true"}).run(1, numbered(5, 10))


def second_claim(path: Path) -> None:
    Driver(path, incarnation=2).claim()


def endless(path: Path) -> None:
    print(os.getpid(), flush=True)
    driver = Driver(path)
    driver.claim()
    for epoch in range(100_000):
        driver.run(epoch, numbered(epoch * 3, epoch * 3 + 3))


def test_frozen_before_its_commit_while_the_successor_repeats_the_epoch(tmp_path: Path, path: Path) -> None:
    first, second = Driver(path), Driver(path, incarnation=2)
    first.claim()
    with frozen(tmp_path, "delta.before_commit", first_epoch, path) as zombie:
        second.claim()
        second.run(0, numbered(0, 5))
        second.run(1, numbered(5, 10))
        assert was_fenced(zombie.wake())
    assert ids(path) == list(range(10))


def test_frozen_when_there_was_no_table(tmp_path: Path, path: Path) -> None:
    with frozen(tmp_path, "delta.before_create", first_epoch, path) as zombie:
        second = Driver(path, incarnation=2)
        second.claim()
        assert data_files(path) == set()
        assert was_fenced(zombie.wake())
    assert ids(path) == []
    second.run(0, numbered(0, 5))
    assert ids(path) == list(range(5))


def test_frozen_when_there_was_no_table_and_the_successor_cannot_make_one(tmp_path: Path, path: Path) -> None:
    """Without a schema no table can be made, so there is no fence and nothing is cleaned.

    The epoch of the older one counts, and the fence follows with the successor's first epoch.
    """
    second = Driver(path, incarnation=2)
    with frozen(tmp_path, "delta.before_create", first_epoch, path) as zombie:
        second.claim(schema=False)
        assert len(data_files(path)) == 1
        assert "committed" in zombie.wake()
    assert second.run(0, numbered(0, 5)) is CommitOutcome.ALREADY_COMMITTED
    with pytest.raises(FencedError):
        Driver(path).run(1, numbered(5, 10))
    assert ids(path) == list(range(5))


def test_frozen_before_it_adds_a_column(tmp_path: Path, path: Path) -> None:
    Driver(path).claim()
    Driver(path).run(0, numbered(0, 5))
    with frozen(tmp_path, "delta.before_columns", wider_epoch, path) as zombie:
        Driver(path, incarnation=2).claim()
        assert was_fenced(zombie.wake())
    assert table(path).column_names == ["id", "name"]
    assert ids(path) == list(range(5))


def test_frozen_before_its_commit_while_the_successor_adds_a_column(tmp_path: Path, path: Path) -> None:
    Driver(path).claim()
    with frozen(tmp_path, "delta.before_commit", first_epoch, path) as zombie:
        second = Driver(path, WIDER, incarnation=2, options={"merge_schema": "true"})
        second.claim()
        second.run(0, numbered(0, 5))
        assert was_fenced(zombie.wake())
    assert ids(path) == list(range(5))


def test_frozen_in_its_own_claim(tmp_path: Path, path: Path) -> None:
    Driver(path).claim()
    with frozen(tmp_path, "delta.before_fence", second_claim, path) as zombie:
        third = Driver(path, incarnation=3)
        third.claim()
        prepared = third.write(0, numbered(0, 5))
        assert was_fenced(zombie.wake())
    third.commit(0, prepared)
    assert ids(path) == list(range(5))


def test_frozen_between_its_fence_and_its_cleaning(tmp_path: Path, path: Path) -> None:
    """It continues to clean up after its successor has begun: only files of incarnations older than its own."""
    Driver(path).claim()
    Driver(path).write(0, numbered(0, 5))
    with frozen(tmp_path, "delta.fenced", second_claim, path) as zombie:
        third = Driver(path, incarnation=3)
        third.claim()
        prepared = third.write(0, numbered(0, 5))
        assert zombie.wake() == ""
    third.commit(0, prepared)
    assert ids(path) == list(range(5))


@pytest.mark.parametrize("seed", range(4))
def test_stopped_anywhere_and_woken_later(path: Path, seed: int) -> None:
    """SIGSTOP at a random moment of a run of commits; the successor repeats what it does not find."""
    wanted = random.Random(seed).randrange(5, 40)
    log = path / "_delta_log" / f"{wanted:020}.json"
    with Child(endless, path) as child:
        until(lambda: log.exists() or child.poll() is not None, f"version {wanted}")
        pid = int(child.text().split()[0])
        os.kill(pid, signal.SIGSTOP)
        second = Driver(path, incarnation=2)
        second.claim()
        last = len(ids(path)) // 3
        assert data_files(path) == set(_live(path)), "what is not committed is cleaned, the rest untouched"
        os.kill(pid, signal.SIGCONT)
        assert was_fenced(child.wait())
        assert len(ids(path)) // 3 == last, "nothing came after the claim"
    for epoch in range(last + 3):
        second.run(epoch, numbered(epoch * 3, epoch * 3 + 3))
    assert ids(path) == list(range(3 * (last + 3)))


# -- who may claim ----------------------------------------------------------------------------------------------------


def test_an_older_incarnation_cannot_claim(path: Path) -> None:
    Driver(path, incarnation=5).claim()
    with pytest.raises(FencedError, match="incarnation 5 of the job has been started; this is incarnation 4"):
        Driver(path, incarnation=4).claim()


def test_a_claim_may_come_again(path: Path) -> None:
    Driver(path).claim()
    version = DeltaTable(path).version()
    Driver(path).claim()
    assert DeltaTable(path).version() == version


def test_another_jobs_uid_is_refused_with_the_ways_out(path: Path) -> None:
    first = Driver(path)
    first.claim()
    first.run(0, numbered(0, 5))
    with pytest.raises(ConfigurationError) as caught:
        Driver(path, job_id="job-2").claim()
    assert "another uid" in caught.value.do and "restore it" in caught.value.do and "delete" in caught.value.do
    Driver(path, uid="other", job_id="job-2").claim()
    assert first.run(1, numbered(5, 7)) is CommitOutcome.COMMITTED


def test_a_table_that_others_made_can_be_claimed(path: Path) -> None:
    Driver(path, incarnation=0, uid="before").run(0, numbered(0, 5))
    driver = Driver(path)
    driver.claim()
    driver.run(0, numbered(5, 7))
    assert ids(path) == list(range(7))


def _live(path: Path) -> list[str]:
    return [str(Path(uri).relative_to(path)) for uri in DeltaTable(path).file_uris()]
