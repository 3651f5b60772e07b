from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_ext.delta.tail import Tail
from spark_ext.errors import StateError, StorageError
from spark_ext.ledger import Ledger, LedgerWriter, MaintenanceSettings, maintain, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.tables import LedgerTable
from spark_ext.ledger.view import SourceView, event_of
from spark_ext.model.control import Delivery, Event, channel, query
from tests.ledger.rows import START, event, flag
from tests.support.waiting import until


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
    writer.append([flag(1, kind="source"), replace(flag(1), kind="query", source="s")])
    assert seen.confirmed() == 0, "these are no channels"
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


def test_flags_an_offset_needs_and_the_ledger_lacks_are_reported(writer: LedgerWriter, tmp_path: Path) -> None:
    writer.append([flag(1), flag(2)])
    with pytest.raises(StateError, match="relies on 3 finished channels of this source, but the ledger has 2"):
        view(writer).finished_channels(3)
    with pytest.raises(StateError, match="flags were deleted"):
        SourceView(str(tmp_path / "nothing"), "s", 1).finished_channels(1)


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
    often = view(writer, every=20)
    assert often.confirmed() == 0
    writer.append(flag(1))
    assert until(often.confirmed, "the flag is seen after the interval") == 1
    assert seen.confirmed() == 0
    assert seen.finished_channels(1) == {"c1": (1, None)}, "what is needed is looked up at once"


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
    assert sequences(seen) == [4], "what an offset has obeyed is not given again"
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
