from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import StorageError
from spark_ext.ledger import FinalSteps, Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.ledger import contiguous
from spark_ext.ledger.schema import EpochRow, FinishedRow, Row
from tests.ledger.rows import checkpoint, epoch, event, flag, incident, state


def test_a_ledger_that_is_not_there_answers_and_is_not_made(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    assert ledger.jobs() == []
    assert ledger.newest_incarnation() is None
    assert ledger.lineage_of("q") == 1
    assert ledger.finished_flags() == []
    assert ledger.flagged("q", 1) == {}
    assert ledger.finished_queries() == {}
    assert ledger.last_epochs() == {}
    assert ledger.last_epoch("q", 1) is None
    assert ledger.checkpoints() == []
    assert ledger.final_steps("q", 1) is None
    assert ledger.next_checkpoint_id() == 1
    assert ledger.control_since(0) == []
    assert ledger.newest_control_sequence() == 0
    assert not Path(ledger.uri).exists()


def test_rows_find_their_tables(writer: LedgerWriter) -> None:
    rows: list[Row] = [epoch(1), flag(1), checkpoint(1), event(1), state("RUNNING"), incident(1)]
    writer.append(rows)
    writer.append(epoch(2))
    for row in rows:
        assert row in Ledger(writer.ledger.uri).table(type(row)).rows()
    assert writer.ledger.last_epoch("q", 1) == ("id-q-1", 2)


def test_the_last_row_is_written_last(writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    for name, table in writer.ledger.tables.items():
        monkeypatch.setattr(table, "append", lambda rows, fence, name=name: order.append((name, len(rows))))
    writer.append([checkpoint(1), epoch(1), flag(1), epoch(2), checkpoint(2)])
    assert order == [("finished", 1), ("epochs", 2), ("checkpoints", 2)]


def test_a_retry_adds_only_what_is_missing(writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = [epoch(1), flag(1)]

    def full(*_: object) -> None:
        raise StorageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(writer.ledger.table(FinishedRow), "append", full)
        for _ in range(2):
            with pytest.raises(StorageError):
                writer.append(rows)
    assert writer.ledger.table(FinishedRow).rows() == []
    writer.append([*rows, epoch(2)])
    assert sorted(row.epoch for row in writer.ledger.table(EpochRow).rows()) == [1, 2]
    assert writer.ledger.table(FinishedRow).rows() == [flag(1)]
    writer.append(rows[0])  # given anew after success, it is a new row
    assert sorted(row.epoch for row in writer.ledger.table(EpochRow).rows()) == [1, 1, 2]


def test_flags_count_without_gaps_by_source_and_lineage(writer: LedgerWriter) -> None:
    writer.append([flag(1), flag(2), flag(2), flag(4), flag(1, source="t"), flag(3, source="u"), flag(5, lineage=2)])
    writer.append([flag(0, kind="source"), flag(0, kind="query")])
    assert writer.ledger.flagged("q", 1) == {"s": 2, "t": 1, "u": 0}
    assert writer.ledger.flagged("other", 1) == {}
    assert [row.sequence for row in writer.ledger.finished_flags(source="s", lineage=1)] == [0, 1, 2, 2, 4]
    assert [row.sequence for row in writer.ledger.finished_flags(lineage=2)] == [5]


@settings(deadline=None)
@given(st.lists(st.integers(0, 30)))
def test_contiguous_is_the_first_gap(sequences: list[int]) -> None:
    expected = next(number for number in range(1, 33) if number not in sequences) - 1
    assert contiguous(np.array(sequences, dtype=np.int64)) == expected


def test_a_new_lineage_is_that_of_its_query_or_of_all(writer: LedgerWriter) -> None:
    writer.append([flag(0, kind="query"), flag(0, kind="query", query="r")])
    assert writer.new_lineage("q", "asked") == 2
    ledger = Ledger(writer.ledger.uri)
    assert (ledger.lineage_of("q"), ledger.lineage_of("r")) == (2, 1)
    assert list(ledger.finished_queries()) == ["r"]
    assert writer.new_lineage("", "restored") == 3
    assert (ledger.lineage_of("q"), ledger.lineage_of("r")) == (3, 3)
    assert ledger.finished_queries() == {}
    writer.end("reset")
    second = start_incarnation(Ledger(ledger.uri), "j")
    forget(ledger.uri, second.number)
    assert (second.number, second.lineage) == (2, 3)
    reset = next(row for row in ledger.jobs() if row.event == "reset")
    assert (reset.query, reset.reason, reset.lineage) == ("q", "asked", 2)


def test_the_last_epoch_is_that_of_the_lineage(writer: LedgerWriter) -> None:
    writer.append([epoch(number) for number in (3, 9, 7)] + [epoch(2, lineage=2), epoch(4, query="r")])
    assert writer.ledger.last_epoch("q", 1) == ("id-q-1", 9)
    assert writer.ledger.last_epoch("q", 2) == ("id-q-2", 2)
    assert writer.ledger.last_epochs() == {"q": ("id-q-2", 2, 2), "r": ("id-r-1", 4, 1)}


def test_the_steps_of_a_final_checkpoint(writer: LedgerWriter) -> None:
    writer.append(checkpoint(1))
    assert writer.ledger.final_steps("q", 1) is None
    writer.append(checkpoint(2, "final", "FAILED", "q"))
    assert writer.ledger.final_steps("q", 1) is None
    writer.append([checkpoint(3, "final", "COMPLETED", "q"), checkpoint(3, "final", "FLAGGED", "q")])
    writer.append(checkpoint(4, "final", "COMPLETED", "r"))
    assert writer.ledger.final_steps("q", 1) == FinalSteps(3, frozenset({"COMPLETED", "FLAGGED"}))
    assert writer.ledger.final_steps("q", 2) is None
    assert writer.ledger.next_checkpoint_id() == 5
    assert [row.checkpoint_id for row in writer.ledger.checkpoints("q")] == [2, 3, 3]
    assert [row.checkpoint_id for row in writer.ledger.checkpoints()] == [1, 2, 3, 3, 4]


def test_control_events_are_numbered(writer: LedgerWriter) -> None:
    writer.append([event(1), event(3), event(2)])
    assert writer.ledger.newest_control_sequence() == 3
    assert [row.sequence for row in writer.ledger.control_since(1)] == [2, 3]
