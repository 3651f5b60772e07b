from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.ledger.columns import arrow_schema, from_arrow, to_arrow
from spark_ext.ledger.kinds import CheckpointKind, CheckpointStatus, ControlStatus, JobEvent
from spark_ext.ledger.schema import ROWS, CheckpointRow, EpochRow, FinishedRow
from spark_ext.model.lifecycle import FinalStep
from tests.ledger.rows import START, checkpoint, epoch, flag
from tools import pages

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 31)).map(lambda it: it.replace(tzinfo=timezone.utc))


@settings(deadline=None)
@given(st.lists(st.tuples(JSON, st.text(), TIMES, st.booleans()), max_size=5))
def test_rows_survive_arrow(given_values: list[tuple[object, str, datetime, bool]]) -> None:
    rows = [
        replace(flag(1), position=position, channel=channel, at=at, drained=drained)
        for position, channel, at, drained in given_values
    ]
    assert from_arrow(FinishedRow, to_arrow(FinishedRow, rows)) == rows


@settings(deadline=None)
@given(st.none() | st.integers(-(2**63), 2**63 - 1))
def test_an_optional_number_survives_arrow(number: int | None) -> None:
    rows = [replace(epoch(1), input_rows=number)]
    assert from_arrow(EpochRow, to_arrow(EpochRow, rows)) == rows


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (replace(flag(1), at=datetime(2026, 1, 1)), r"FinishedRow\.at: .* is not a time in UTC"),
        (replace(flag(1), at=START.replace(tzinfo=timezone(timedelta(hours=1)))), "is not a time in UTC"),
        (replace(flag(1), channel=None), "channel"),  # type: ignore[arg-type]
        (checkpoint(1, status="DONE"), r"CheckpointRow\.status: 'DONE' is not one of TRIGGERED, COMPLETED, FLAGGED"),
        (flag(1, kind="chanel"), r"FinishedRow\.kind: 'chanel' is not one of channel, source, query"),
    ],
    ids=["naive", "other zone", "missing", "status", "kind"],
)
def test_a_value_that_its_column_does_not_take_is_refused(row: FinishedRow | CheckpointRow, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        to_arrow(type(row), [row])


def test_columns_are_described_and_few_of_them_nullable() -> None:
    schema = arrow_schema(EpochRow)
    optional = ["input_rows", "duration_ms", "offsets", "spent_ms", "parts_ms", "lag_rows", "late_rows", "state_rows"]
    assert [field.name for field in schema if field.nullable] == optional
    assert schema.field("committed_at").type == pa.timestamp("us", tz="UTC")
    assert "| |" not in pages.tables().replace("| column | type | meaning |", "")
    assert all(row_type.__doc__ for row_type in ROWS)


def test_an_equal_json_value_has_equal_text() -> None:
    one, other = ({"a": 1, "b": START.isoformat()}, {"b": START.isoformat(), "a": 1})
    texts = to_arrow(FinishedRow, [flag(1, position=one), flag(1, position=other)])["position"].to_pylist()
    assert texts[0] == texts[1]


def test_members_are_stored_as_texts_and_steps_are_statuses() -> None:
    row = checkpoint(1, kind=CheckpointKind.FINAL, status=CheckpointStatus.COMPLETED)
    table = to_arrow(CheckpointRow, [row])
    assert (table["kind"].to_pylist(), table["status"].to_pylist()) == (["final"], ["COMPLETED"])
    assert from_arrow(CheckpointRow, table) == [row]
    assert f"{ControlStatus.ACCEPTED}, {JobEvent.RESET}" == "accepted, reset"
    others = {"TRIGGERED", "FAILED", "RELEASED"}
    assert {step.value for step in FinalStep} | others == {status.value for status in CheckpointStatus}
