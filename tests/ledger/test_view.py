from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_ext.delta.tail import Tail
from spark_ext.errors import StateError, StorageError
from spark_ext.ledger import Ledger, LedgerWriter, MaintenanceSettings, maintain, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import CheckpointRow, ControlEventRow
from spark_ext.ledger.tables import LedgerTable
from spark_ext.ledger.view import SourceView, event_of
from spark_ext.model.barriers import Checkpoints
from spark_ext.model.control import JOB, Delivery, Event, channel, query, source
from tests.ledger.rows import START, checkpoint, event, flag, line, process
from tests.support.ledgers import started
from tests.support.waiting import until


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LedgerWriter]:
    ledger = Ledger(str(tmp_path / "state"))
    incarnation = started(ledger, "j")
    yield LedgerWriter(ledger, incarnation)
    forget(ledger.uri, incarnation.number)


def view(writer: LedgerWriter, lineage: int = 1, query: str = "q", every: int = 0) -> SourceView:
    return SourceView(writer.ledger.uri, "s", lineage, every, query=query)


def sequences(seen: SourceView, after: int = 0) -> list[int]:
    return [it.sequence for it in seen.events(after)]


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def test_without_a_ledger_nothing_is_known(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    seen = SourceView(ledger.uri, "s", 1, 0, query="q")
    assert (seen.confirmed(), seen.finished_channels(0), seen.events(0)) == (0, {}, ())
    incarnation = start_incarnation(ledger, "j")
    forget(ledger.uri, incarnation.number)
    assert (seen.confirmed(), seen.finished_channels(0), seen.events(0)) == (0, {}, ())
    LedgerWriter(ledger, incarnation).append([flag(1, position={"row": 3}), event(1)])
    assert seen.confirmed() == 1
    assert seen.finished_channels(1) == {"c1": (1, {"row": 3})}
    assert seen.events(0) == (event_of(event(1)),)


def test_flags_are_confirmed_without_gaps(writer: LedgerWriter) -> None:
    seen = view(writer)
    writer.append([flag(1), flag(2), flag(4)])
    assert seen.confirmed() == 2
    assert list(seen.finished_channels(2)) == ["c1", "c2"]
    writer.append([flag(2), flag(3, source="t"), flag(3, lineage=2)])
    assert seen.confirmed() == 2
    writer.append(flag(3))
    assert seen.confirmed() == 4
    assert seen.finished_channels(3) == {"c1": (1, None), "c2": (2, None), "c3": (3, None)}
    assert sorted(seen.finished_channels(4)) == ["c1", "c2", "c3", "c4"]
    assert view(writer).finished_channels(4) == seen.finished_channels(4)


def test_flags_of_a_source_or_query_are_no_channels(writer: LedgerWriter) -> None:
    writer.append([flag(1, kind="source"), replace(flag(1), kind="query", source="s")])
    assert view(writer).confirmed() == 0


def test_flags_that_an_offset_counts_on_and_the_ledger_lacks_are_reported(writer: LedgerWriter, tmp_path: Path) -> None:
    writer.append([flag(1), flag(2)])
    with pytest.raises(StateError, match="relies on 3 finished channels of this source, but the ledger has 2"):
        view(writer).finished_channels(3)
    with pytest.raises(StateError, match="flags were deleted"):
        SourceView(str(tmp_path / "nothing"), "s", 1).finished_channels(1)


def test_flags_are_looked_up_at_once_when_they_are_needed(writer: LedgerWriter) -> None:
    seen = view(writer, every=3_600_000)
    assert seen.confirmed() == 0
    writer.append(flag(1))
    assert seen.confirmed() == 0
    assert seen.finished_channels(1) == {"c1": (1, None)}


def test_compaction_and_vacuum_change_nothing(writer: LedgerWriter) -> None:
    seen = view(writer)
    for sequence in range(1, 11):
        writer.append(flag(sequence))
        if sequence == 5:
            assert seen.confirmed() == 5
    settings = MaintenanceSettings(small_files=2, file_retention_hours=0, budget=timedelta(minutes=5))
    done = maintain(writer.ledger, datetime.now(timezone.utc), settings, writer.incarnation.fence)
    assert {it.what for it in done} >= {"compact", "vacuum"}
    assert seen.confirmed() == 10
    assert len(seen.finished_channels(10)) == 10
    writer.append(flag(11))
    assert seen.confirmed() == 11


@pytest.mark.slow(2, "100,000 rows")
def test_a_hundred_thousand_flags(writer: LedgerWriter) -> None:
    count = 100_000
    writer.append([flag(sequence, position=sequence) for sequence in range(1, count + 1)])
    seen = view(writer)
    assert seen.confirmed() == count
    channels = seen.finished_channels(count)
    assert len(channels) == count
    assert channels["c77777"] == (77777, 77777)
    assert writer.ledger.flagged("q", 1) == {"s": count}


def test_what_is_known_is_not_read_again(writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = LedgerTable.read

    def counted(self: LedgerTable, *arguments: object, **named: object) -> object:  # type: ignore[type-arg]
        found = original(self, *arguments, **named)  # type: ignore[arg-type]
        read.append(found.num_rows)
        return found

    monkeypatch.setattr(LedgerTable, "read", counted)
    seen = view(writer)
    writer.append([flag(sequence) for sequence in range(1, 101)])
    assert seen.confirmed() == 100
    for _ in range(3):
        seen.confirmed()
    writer.append(flag(101))
    assert seen.confirmed() == 101
    assert read == [0, 100, 1]  # the first looks for a rename


def test_a_look_happens_no_more_often_than_asked_for(writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    original = LedgerTable.refresh

    def counted(table: LedgerTable[Any]) -> bool:
        looks.append(table.name)
        return original(table)

    monkeypatch.setattr(LedgerTable, "refresh", counted)
    seen = view(writer, every=3_600_000)
    for _ in range(5):
        seen.confirmed()
        seen.events(0)
    assert looks.count("finished") == looks.count("control_events") == 2  # reading looks once more


def test_a_change_is_noticed_after_the_interval(writer: LedgerWriter) -> None:
    seen = view(writer, every=20)
    assert seen.confirmed() == 0
    writer.append(flag(1))
    assert until(seen.confirmed, "the flag is seen") == 1


def test_a_read_that_failed_is_made_up_for(writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = view(writer)
    assert seen.events(0) == ()
    writer.append([event(1), flag(1)])

    def failing(*_: object, **__: object) -> None:
        raise StorageError("lost connection")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerTable, "read", failing)
        patch.setattr(Tail, "after", lambda *_: None)
        for look in (lambda: seen.events(0), seen.confirmed):
            with pytest.raises(StorageError):
                look()
    assert sequences(seen) == [1]
    assert seen.confirmed() == 1


def test_events_are_those_of_the_whole_job_in_their_order(writer: LedgerWriter) -> None:
    """The planner decides which concern its source: the configuration is that of all of them."""
    writer.append([event(2, "source:s", kind="pause"), event(1, "job")])
    writer.append([event(4, "source:t/c", kind="seek", value={"position": 7}), event(3, "query:q")])
    seen = view(writer)
    assert sequences(seen) == [1, 2, 3, 4]
    assert seen.events(3) == (
        Event(4, "e4", "seek", channel("t", "c"), {"position": 7}, incarnation=1, at_ms=ms(START)),
    )


def test_events_that_an_offset_has_obeyed_are_not_given_again(writer: LedgerWriter) -> None:
    seen = view(writer)
    writer.append([event(number) for number in range(1, 5)])
    assert sequences(seen, 2) == [3, 4]
    assert sequences(seen) == [3, 4]
    writer.append(event(5))
    assert sequences(seen, 4) == [5]
    assert sequences(view(writer), 3) == [4, 5]
    assert sequences(view(writer), 9) == []


def test_what_an_event_says_is_what_was_stored(writer: LedgerWriter) -> None:
    later = START + timedelta(hours=1, milliseconds=7)
    row = event(1, "query:q", kind="set_config", value={"key": "k", "value": [1, None, "ä"]}, lineage=3)
    writer.append(replace(row, delivery="aligned", expires_at=later, incarnation=4))
    assert view(writer).events(0) == (
        Event(1, "e1", "set_config", query("q"), row.value, Delivery.ALIGNED, 3, 4, ms(START), ms(later)),
    )


def test_rows_of_older_releases_are_read(writer: LedgerWriter) -> None:
    """They have the bare uid of a source, or "" for the job, and further rows for what became of an event."""
    drain, final = event(1), event(2, "s", kind="final_epoch", value=2)
    writer.append([drain, replace(drain, status="applied"), final, replace(drain, status="acknowledged")])
    assert [(it.kind, it.target, it.delivery) for it in view(writer).events(0)] == [
        ("drain", JOB, Delivery.IMMEDIATE),
        ("final_epoch", source("s"), Delivery.IMMEDIATE),
    ]


def test_an_event_whose_commit_was_repeated_comes_once(writer: LedgerWriter) -> None:
    seen = view(writer)
    writer.append([event(1), event(2)])
    writer.append(event(2))
    assert sequences(seen) == [1, 2]


def test_new_events_are_found_without_a_look_at_the_table(
    writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = view(writer)
    writer.append([event(number) for number in range(1, 4)])
    assert sequences(seen) == [1, 2, 3]

    def failing(*_: object, **__: object) -> None:
        raise AssertionError("the whole table was looked at")

    monkeypatch.setattr(LedgerTable, "read", failing)
    for number in (4, 5):
        writer.append([event(number, value={"n": number}), event(1, status="applied")])
        assert seen.events(number - 1) == (event_of(event(number, value={"n": number})),)
    assert sequences(seen, 5) == []


def test_compacted_files_are_not_read_again_and_deleted_ones_not_missed(writer: LedgerWriter) -> None:
    """What came between two looks may be in a file that is gone by the second one."""
    seen = view(writer)
    writer.append(event(1))
    assert sequences(seen) == [1]
    for number in range(2, 12):
        writer.append(event(number))
    settings = MaintenanceSettings(small_files=2, file_retention_hours=0, budget=timedelta(minutes=5))
    done = maintain(writer.ledger, datetime.now(timezone.utc), settings, writer.incarnation.fence)
    assert {it.what for it in done} >= {"compact", "vacuum"}
    assert sequences(seen) == list(range(1, 12))
    writer.append(event(12))
    assert sequences(seen, 11) == [12]


def test_a_planner_that_has_slept_longer_than_log_entries_are_kept_misses_nothing(
    writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = view(writer)
    writer.append(event(1))
    assert sequences(seen) == [1]
    table = writer.ledger.table(ControlEventRow)
    for number in range(2, 5):
        writer.append(event(number))
    with table.opened() as handle:
        assert handle is not None
        handle.create_checkpoint()
        newest = handle.version()
    for version in range(newest):
        (Path(table.uri) / "_delta_log" / f"{version:020}.json").unlink()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert sequences(seen) == [1, 2, 3, 4]


def test_a_ledger_that_has_gone_is_reported(writer: LedgerWriter) -> None:
    seen = view(writer)
    writer.append(flag(1))
    assert seen.confirmed() == 1
    shutil.rmtree(writer.ledger.folder)
    assert seen.confirmed() == 1  # what was read stays true
    with pytest.raises(StateError, match="the ledger has 1: flags were deleted"):
        seen.finished_channels(2)
    with pytest.raises(StateError, match="flags were deleted"):
        view(writer).finished_channels(1)


def test_a_source_never_takes_flags_that_it_earned_in_another_query(writer: LedgerWriter) -> None:
    """Formerly: a uid that moves to another query of the job would not read what the first one had finished."""
    writer.append([flag(1), flag(2, query="other"), flag(1, query="other")])
    assert (view(writer).confirmed(), view(writer, query="other").confirmed()) == (1, 2)
    assert view(writer, query="third").confirmed() == 0
    with pytest.raises(StateError, match="relies on 2 finished channels of this source, but the ledger has 1"):
        view(writer).finished_channels(2)


def test_a_renamed_query_keeps_its_flags_and_the_next_one_of_that_name_has_none(writer: LedgerWriter) -> None:
    writer.append([flag(1, query="old"), flag(2, query="old")])
    writer.renamed("new", "old", 1)
    writer.append(flag(3, query="new"))
    assert view(writer, query="new").confirmed() == 3
    assert sorted(view(writer, query="new").finished_channels(3)) == ["c1", "c2", "c3"]
    assert writer.ledger.lineage_of("new") == 1
    assert writer.ledger.lineage_of("old") == 2
    assert view(writer, lineage=2, query="old").confirmed() == 0


def test_a_checkpoint_is_pending_from_its_trigger_to_its_end_in_its_own_incarnation(writer: LedgerWriter) -> None:
    """A barrier that an offset still carries from a driver that was killed must keep nobody waiting."""

    def triggered(number: int, incarnation: int, *stamps: str, later: int = 0) -> CheckpointRow:
        row = checkpoint(number, status="TRIGGERED", at=START + timedelta(seconds=number, milliseconds=later))
        return replace(row, incarnation=incarnation, mode="aligned", metadata={"stamps": list(stamps)})

    seen = view(writer)
    assert seen.checkpoints(2) == (Checkpoints(), 0)
    writer.append([triggered(5, 1, "s"), checkpoint(4), checkpoint(9, kind="final", query="q")])
    assert seen.checkpoints(2) == (Checkpoints(5), 0)
    assert view(writer).checkpoints(1) == (Checkpoints(5, frozenset({5})), 5)
    assert not seen.checkpoints(2)[0].any_pending(0, 5)
    writer.append(triggered(7, 2, "t"))
    assert seen.checkpoints(2) == (Checkpoints(7, frozenset({7})), 0)
    writer.append(triggered(7, 2, "t", "s", later=1))
    assert seen.checkpoints(2) == (Checkpoints(7, frozenset({7})), 7), "triggered again: queries have finished"
    writer.append([replace(checkpoint(7), incarnation=2, mode="aligned"), triggered(8, 2, "s")])
    assert seen.checkpoints(2) == view(writer).checkpoints(2) == (Checkpoints(8, frozenset({8})), 8)
    writer.append(replace(checkpoint(8, status="FAILED"), incarnation=2, mode="aligned"))
    assert seen.checkpoints(2) == (Checkpoints(8), 0)


def test_what_is_written_while_a_look_reads_is_seen_by_the_next_one(
    writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly: a look read two versions of one table. A checkpoint triggered in between was never seen, or stamped."""

    def row(number: int, status: str) -> CheckpointRow:
        return replace(checkpoint(number, status=status), incarnation=2, mode="aligned", metadata={"stamps": ["s"]})

    seen = view(writer)
    writer.append([flag(1), event(1), row(1, "TRIGGERED"), row(1, "COMPLETED")])
    later = {"finished": flag(2), "control_events": event(2), "checkpoints": row(2, "TRIGGERED")}
    read = LedgerTable.read

    def read_and_append(table: LedgerTable[Any], *args: Any, **kwargs: Any) -> Any:
        found = read(table, *args, **kwargs)
        if table.name in later:
            writer.append(later.pop(table.name))
        return found

    monkeypatch.setattr(LedgerTable, "read", read_and_append)
    for _ in range(2):
        looks = seen.confirmed(), sequences(seen), seen.checkpoints(2)
    assert not later
    assert looks == (2, [1, 2], (Checkpoints(2, frozenset({2})), 2))


def test_a_barrier_from_before_the_start_of_which_no_row_is_left_is_over(writer: LedgerWriter) -> None:
    """It came with another job's savepoint, or its rows have expired."""
    seen = SourceView(writer.ledger.uri, "s", 1, 0, query="q", first_checkpoint=6)
    assert seen.checkpoints(2) == (Checkpoints(5), 0)
    writer.append(replace(checkpoint(7), incarnation=2))
    known, _ = seen.checkpoints(2)
    assert not known.any_pending(0, upto=5)
    assert known.any_pending(0, upto=6), "its row is on its way: that of a later checkpoint may come first"
    writer.append(replace(checkpoint(6, status="TRIGGERED"), incarnation=2, metadata={"stamps": ["s"]}))
    assert seen.checkpoints(2) == (Checkpoints(6, frozenset({6})), 6)


def test_a_planner_reads_the_ledger_without_pandas(writer: LedgerWriter) -> None:
    """Formerly: each source of a running query had pandas in memory, 40 MB, which took a fifth of its start."""
    script = """
import sys
from spark_ext.ledger.view import SourceView

seen = SourceView(uri, "s", 1, 0, query="q")
for wanted in (0, 2):
    while not seen.confirmed() == len(seen.events(0)) == seen.checkpoints(1)[0].newest == wanted:
        pass
    assert sorted(seen.finished_channels(wanted)) == ["c1", "c2"][:wanted]
    say("pandas" in sys.modules)
"""
    with process(script, writer.ledger.uri) as planner:
        assert line(planner) == "False"
        writer.append([flag(1), flag(2), event(1), event(2)])
        writer.append([checkpoint(number, "periodic", "TRIGGERED") for number in (1, 2)])
        assert line(planner) == "False"
