"""How far each query is behind, from the newest heartbeat of the driver and from the newest epoch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class QueryLag:
    """Of one query, as the ledger and the heartbeat have it. Times are ms since 1970 UTC."""

    rows: int | None = None
    """Rows that it has still to read; None: unknown."""
    at: int | None = None
    """When that was so; None: unknown."""
    sources: tuple[tuple[str, int, int], ...] = ()
    """By source, as far as it is known: uid, rows, and when."""
    watermark: int | None = None
    newest_row: int | None = None
    """The greatest event time that Spark has seen in its rows."""

    def to_json(self) -> dict[str, Any]:
        """Rows, time and sources, as the document has them."""
        return {"rows": self.rows, "at": self.at, "sources": [list(one) for one in self.sources]}


def said_of(said: Mapping[str, Any], uid: str) -> Mapping[str, Any]:
    """What a driver has said of one query; empty if it has said nothing."""
    found = said.get(uid)
    return found if isinstance(found, Mapping) else {}


def query_lag(said: Mapping[str, Any], rows: int | None, planned: int | None, *, finished: bool) -> QueryLag:
    """What is known of a query.

    Args:
        said: of it with the newest heartbeat, see `queries.history`; may be empty. What is malformed is left out.
        rows: its lag by its newest epoch; None: unknown.
        planned: when that epoch was planned; None: unknown.
        finished: whether it has finished: it has nothing to read then.
    """
    watermark, newest = _whole(said.get("watermark")), _whole(said.get("newest_row"))
    if finished:
        return QueryLag(0, watermark=watermark, newest_row=newest)
    sources = _sources(said.get("lag"))
    total, at = None, None
    if sources and said.get("complete") is True:
        total, at = sum(one for _, one, _ in sources), min(when for _, _, when in sources)
    if rows is not None and planned is not None and (at is None or planned > at):
        total, at = rows, planned
    return QueryLag(total, at, sources, watermark, newest)


def _sources(lags: Any) -> tuple[tuple[str, int, int], ...]:
    if not isinstance(lags, Mapping):
        return ()
    found = []
    for uid, one in sorted(lags.items()):
        if isinstance(one, list) and len(one) == 2:
            rows, at = _whole(one[0]), _whole(one[1])
            if rows is not None and at is not None:
                found.append((str(uid), rows, at))
    return tuple(found)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
