from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import StorageError
from spark_ext.ledger import Ledger, LedgerWriter, maintain, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.ledger import contiguous
from spark_ext.ledger.schema import EpochRow, FinishedRow, Row
from tests.ledger.rows import START, checkpoint, epoch, event, flag, incident, state


def test_a_ledger_that_is_not_there_answers_and_is_not_made(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    assert (ledger.jobs(), ledger.newest_incarnation()) == ([], None)
    assert (ledger.control_since(0), ledger.newest_control_sequence()) == ([], 0)
    assert maintain(ledger, START) == []
    assert not Path(ledger.uri).exists()


def test_rows_find_their_tables(writer: LedgerWriter) -> None:
    rows: list[Row] = [epoch(1), flag(1), checkpoint(1), event(1), state("RUNNING"), incident(1)]
    writer.append(rows)
    writer.append(epoch(2))
    for row in rows:
        assert row in Ledger(writer.ledger.uri).table(type(row)).rows()
    writer.append([event(3), event(2)])
    assert writer.ledger.newest_control_sequence() == 3
    assert [row.sequence for row in writer.ledger.control_since(1)] == [2, 3]


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


@settings(deadline=None)
@given(st.lists(st.integers(0, 30)))
def test_contiguous_is_the_first_gap(sequences: list[int]) -> None:
    expected = next(number for number in range(1, 33) if number not in sequences) - 1
    assert contiguous(np.array(sequences, dtype=np.int64)) == expected


def test_a_new_lineage_is_a_row_and_that_of_the_next_start(writer: LedgerWriter) -> None:
    assert (writer.new_lineage("q", "asked"), writer.new_lineage("", "restored")) == (2, 3)
    writer.end("reset")
    second = start_incarnation(Ledger(writer.ledger.uri), "j")
    forget(writer.ledger.uri, second.number)
    assert (second.number, second.lineage) == (2, 3)
    reset = next(row for row in writer.ledger.jobs() if row.event == "reset")
    assert (reset.query, reset.reason, reset.lineage) == ("q", "asked", 2)
