"""Pages of a table of the ledger, newest first."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_ext.ledger.columns import columns as columns_of
from spark_ext.ledger.columns import from_json_many
from spark_ext.ledger.schema import CheckpointRow, EpochRow, FinishedRow, IncidentRow, Row
from spark_ext.server.problems import Problem

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger


@dataclass(frozen=True)
class Listing:
    """A table as it is listed."""

    row_type: type[Row]
    time: str  # column of the time by which it is sorted
    key: tuple[str, ...]  # columns that tell rows of one time apart
    hidden: frozenset[str] = frozenset()  # columns that are not shown, as they may be large


EPOCHS: Final = Listing(EpochRow, "committed_at", ("query", "lineage", "epoch"), frozenset({"offsets"}))
FINISHED: Final = Listing(FinishedRow, "at", ("query", "source", "kind", "channel", "lineage"))
CHECKPOINTS: Final = Listing(CheckpointRow, "at", ("checkpoint_id", "query", "status"), frozenset({"metadata"}))
INCIDENTS: Final = Listing(IncidentRow, "at", ("incident_id",))

_BEGIN: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_WINDOWS: Final = (timedelta(hours=1), timedelta(days=1), None)  # how far back is read until enough is found


def page(
    ledger: Ledger,
    listing: Listing,
    wanted: Mapping[str, str | None],
    cursor: str | None,
    limit: int,
    labels: Sequence[str] = (),
) -> dict[str, Any]:
    """A page of rows; values that are `wanted`, and labels, are combined with AND."""
    before = None if cursor is None else _parsed(cursor, listing)
    pairs = [_label(one) for one in labels]
    upper = datetime.now(timezone.utc) + timedelta(minutes=5) if before is None else _moment(before[0])
    found: list[tuple[tuple[int, list[Any]], dict[str, Any]]] = []
    for window in _WINDOWS:
        found = _rows(ledger, listing, upper, window)
        found = [(key, row) for key, row in found if _wanted(row, wanted, pairs) and (before is None or key < before)]
        if len(found) > limit:
            break
    chosen = found[:limit]
    following = _cursor(chosen[-1][0]) if len(found) > limit else None
    return {"rows": [row for _, row in chosen], "cursor": following}


def _rows(
    ledger: Ledger, listing: Listing, upper: datetime, window: timedelta | None
) -> list[tuple[tuple[int, list[Any]], dict[str, Any]]]:
    shown = [one for one in columns_of(listing.row_type) if one.name not in listing.hidden]
    where: list[tuple[str, str, Any]] = [(listing.time, "<=", upper)]
    if window is not None:
        where.append((listing.time, ">", upper - window))
    table = ledger.table(listing.row_type).read([one.name for one in shown], where)
    values = {one.name: table[one.name].to_pylist() for one in shown}
    for one in shown:
        if one.json:
            values[one.name] = from_json_many(values[one.name], listing.row_type, one.name)
    found: dict[str, tuple[tuple[int, list[Any]], dict[str, Any]]] = {}
    for row in (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)):
        key = ((row[listing.time] - _BEGIN) // timedelta(microseconds=1), [row[name] for name in listing.key])
        plain = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
        found[json.dumps(key)] = (key, plain)  # a row may be there twice
    return sorted(found.values(), key=lambda one: one[0], reverse=True)


def _wanted(row: Mapping[str, Any], wanted: Mapping[str, str | None], labels: Sequence[tuple[str, str]]) -> bool:
    if any(value is not None and row[name] != value for name, value in wanted.items()):
        return False
    there = row.get("labels") or {}
    return all(str(there.get(name)) == value for name, value in labels)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Problem(422, "parameter", "a label is not NAME=VALUE", "write label=type=USER_CODE, for example")
    return name, value


def _cursor(key: tuple[int, list[Any]]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode()


def _parsed(cursor: str, listing: Listing) -> tuple[int, list[Any]]:
    kinds = {one.name: one.arrow for one in columns_of(listing.row_type)}
    try:
        at, key = json.loads(base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True))
        types = [int if str(kinds[name]) == "int64" else str for name in listing.key]
        if type(at) is not int or [type(one) for one in key] != types:
            raise ValueError
        _moment(at)
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise Problem(400, "malformed", "invalid cursor for this list", "use the cursor of the previous page") from None
    return at, key


def _moment(us: int) -> datetime:
    return _BEGIN + timedelta(microseconds=us)
