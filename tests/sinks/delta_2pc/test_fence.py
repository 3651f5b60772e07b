"""Older incarnations: real processes, frozen at the worst moments, what they may not do, and what is cleaned up.

Each frozen driver is of incarnation 1; incarnation 2 claims the table and cleans up before it is woken.
"""

import os
import random
import signal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_ext.delta import upkeep
from spark_ext.errors import ConfigurationError, FencedError
from spark_ext.sinks.contract import Claim, CommitOutcome
from spark_ext.storage import Location
from spark_ext.testing.children import Child, frozen, was_fenced
from tests.sinks.delta_2pc.delta_kit import Driver, data_files, ddl, ids, live_files, numbered, table
from tests.support.waiting import until

WIDER = ddl("id long, name string, extra double")


def first_epoch(path: Path) -> None:
    Driver(path).run(0, numbered(0, 5))
    print("committed", flush=True)


def wider_epoch(path: Path) -> None:
    Driver(path, WIDER, options={"schema_evolution": "add_columns"}).run(1, numbered(5, 10))


def second_claim(path: Path) -> None:
    Driver(path, incarnation=2).claim()


def endless(path: Path) -> None:
    print(os.getpid(), flush=True)
    driver = Driver(path).claim()
    for epoch in range(100_000):
        driver.run(epoch, numbered(epoch * 3, epoch * 3 + 3))


def test_frozen_when_there_was_no_table(tmp_path: Path, path: Path) -> None:
    with frozen(tmp_path, "delta.before_create", first_epoch, path) as zombie:
        second = Driver(path, incarnation=2).claim()
        assert data_files(path) == set()
        assert was_fenced(zombie.wake())
    assert ids(path) == []
    second.run(0, numbered(0, 5))
    assert ids(path) == list(range(5))


def test_frozen_without_a_table_that_its_successor_cannot_make(tmp_path: Path, path: Path) -> None:
    """Without a schema there is nothing to fence: the epoch of the older one counts, and the fence follows."""
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


def test_frozen_at_its_commit_while_its_successor_adds_a_column(tmp_path: Path, path: Path) -> None:
    Driver(path).claim()
    with frozen(tmp_path, "delta.before_commit", first_epoch, path) as zombie:
        Driver(path, WIDER, incarnation=2, options={"schema_evolution": "add_columns"}).claim().run(0, numbered(0, 5))
        assert was_fenced(zombie.wake())
    assert ids(path) == list(range(5))


def test_frozen_in_its_own_claim(tmp_path: Path, path: Path) -> None:
    Driver(path).claim()
    with frozen(tmp_path, "delta.before_fence", second_claim, path) as zombie:
        third = Driver(path, incarnation=3).claim()
        prepared = third.write(0, numbered(0, 5))
        assert was_fenced(zombie.wake())
    third.commit(0, prepared)
    assert ids(path) == list(range(5))


def test_frozen_between_its_fence_and_its_cleaning(tmp_path: Path, path: Path) -> None:
    """It continues to clean up after its successor has begun: only files of incarnations older than its own."""
    Driver(path).claim()
    Driver(path).write(0, numbered(0, 5))
    with frozen(tmp_path, "delta.fenced", second_claim, path) as zombie:
        third = Driver(path, incarnation=3).claim()
        prepared = third.write(0, numbered(0, 5))
        assert zombie.wake() == ""
    third.commit(0, prepared)
    assert ids(path) == list(range(5))


@pytest.mark.parametrize("seed", range(4))
def test_stopped_anywhere_and_woken_later(path: Path, seed: int) -> None:
    wanted = random.Random(seed).randrange(5, 40)
    log = path / "_delta_log" / f"{wanted:020}.json"
    with Child(endless, path) as child:
        until(lambda: log.exists() or child.poll() is not None, f"version {wanted}")
        pid = int(child.text().split()[0])
        os.kill(pid, signal.SIGSTOP)
        second = Driver(path, incarnation=2).claim()
        last = len(ids(path)) // 3
        assert data_files(path) == live_files(path), "what is not committed is cleaned, the rest untouched"
        os.kill(pid, signal.SIGCONT)
        assert was_fenced(child.wait())
        assert len(ids(path)) // 3 == last, "nothing came after the claim"
    for epoch in range(last + 3):
        second.run(epoch, numbered(epoch * 3, epoch * 3 + 3))
    assert ids(path) == list(range(3 * (last + 3)))


def test_another_jobs_uid_is_refused_with_the_ways_out(path: Path) -> None:
    first = Driver(path).claim()
    first.run(0, numbered(0, 5))
    with pytest.raises(ConfigurationError) as caught:
        Driver(path, job_id="job-2").claim()
    assert "another uid" in caught.value.do and "restore it" in caught.value.do and "delete" in caught.value.do
    Driver(path, uid="other", job_id="job-2").claim()
    assert first.run(1, numbered(5, 7)) is CommitOutcome.COMMITTED


def test_a_table_that_others_made_can_be_claimed(path: Path) -> None:
    Driver(path, incarnation=0, uid="before").run(0, numbered(0, 5))
    Driver(path).claim().run(0, numbered(5, 7))
    assert ids(path) == list(range(7))


def staged(driver: Driver, epoch: int, start: int, attempt: int = 0) -> set[str]:
    return {file.path for file in driver.write(epoch, numbered(start, start + 5), attempt=attempt) or ()}


def test_a_dead_incarnations_files_are_deleted_and_nothing_else(path: Path) -> None:
    first = Driver(path).claim()
    first.run(0, numbered(0, 5))
    live = data_files(path)
    dead = staged(first, 1, 5) | staged(first, 1, 5, attempt=1) | staged(first, 0, 0, attempt=7)
    other = staged(Driver(path, uid="other"), 1, 5)
    almost = staged(Driver(path, uid="out-i1"), 1, 5)
    unfenced = staged(Driver(path, incarnation=0), 1, 5)
    mine = staged(Driver(path, incarnation=2), 1, 5)
    for name in {"part-00000-c000.snappy.parquet", "notes.txt"}:
        (path / name).write_text("somebody else's")
    assert dead <= data_files(path)
    Driver(path, incarnation=2).claim()
    assert data_files(path) == live | other | almost | unfenced | mine | {"part-00000-c000.snappy.parquet"}
    assert (path / "notes.txt").exists()
    assert ids(path) == list(range(5))


def test_partition_folders_are_searched_and_hidden_ones_are_not(path: Path) -> None:
    first = Driver(path, ddl("id long, p string"), options={"partition_by": "p"}).claim()
    first.run(0, [{"id": n, "p": "a/b c~" if n % 2 else None} for n in range(10)])
    live = data_files(path)
    assert len(live) == 2
    first.write(1, [{"id": n, "p": "a/b c~"} for n in range(10)])
    hidden = path / "_change_data" / Path(next(iter(live))).name.replace("-e0-", "-e9-")
    hidden.parent.mkdir()
    hidden.write_text("a file of another writer's feature")
    Driver(path, first.schema, incarnation=2, options=first.options).claim()
    assert data_files(path) == live | {str(hidden.relative_to(path))}
    assert ids(path) == list(range(10))


def test_files_removed_by_compaction_are_vacuums(path: Path) -> None:
    first = Driver(path).claim()
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


def test_files_that_a_log_checkpoint_holds_are_live(path: Path) -> None:
    first = Driver(path).claim()
    for epoch in range(3):
        first.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    dead = staged(first, 3, 15)
    Driver(path, incarnation=2).claim()
    assert not dead & data_files(path)
    assert ids(path) == list(range(15))


def test_a_fenced_claim_deletes_nothing(path: Path) -> None:
    Driver(path, incarnation=3).claim()
    dead = staged(Driver(path), 0, 0)
    with pytest.raises(FencedError):
        Driver(path, incarnation=2).claim()
    assert data_files(path) == dead


def test_live_files_are_listed_only_for_possible_orphans(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(path).claim().run(0, numbered(0, 5))

    def refuse(table: DeltaTable) -> frozenset[str]:
        raise AssertionError("the table's files were asked for")

    monkeypatch.setattr(upkeep, "committed_names", refuse)
    assert upkeep.clean(Location(str(path)), DeltaTable(path), Claim("out", "job", "job-1", 1, 0), "me") == 0


def test_partition_folders_have_plain_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Location, "of", Location)  # keeps `file://`, which is then taken for an object store
    (tmp_path / "t").mkdir()
    schema = ddl("id long, p string")
    first = Driver(f"file://{tmp_path}/t", schema, options={"partition_by": "p"}).claim()
    first.run(0, [{"id": n, "p": ["a/b", "ü ~%", None][n % 3]} for n in range(9)])
    folders = {name.rpartition("/")[0] for name in data_files(tmp_path / "t")}
    assert folders == {"p=a_2Fb", "p=_C3_BC_20_7E_25", "p=__HIVE_DEFAULT_PARTITION__"}
    dead = {file.path for file in first.write(1, [{"id": 9, "p": "a/b"}]) or ()}
    Driver(f"file://{tmp_path}/t", schema, incarnation=2, options=first.options).claim()
    assert not dead & data_files(tmp_path / "t")
    assert ids(tmp_path / "t") == list(range(9))
