"""What the epochs of a query add up to. Pure, over arrays: there may be very many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from spark_ext.views.page.epochs import UNKNOWN, Epochs, Ints
from spark_ext.views.snapshot import ExchangeSnapshot, InboxSnapshot

RATE_MS: Final = 60_000  # over which time the rows per second of a running query are measured, ms


@dataclass(frozen=True)
class Figures:
    """Of one query. Times are ms since 1970 UTC."""

    epochs: int = 0
    rows: int = 0
    last: int = -1
    last_ms: int | None = None  # its duration, ms; None: unknown
    at: int = 0  # when it was committed
    lag: int | None = None  # rows that were still to be read when it was planned; None: unknown
    planned: int | None = None  # when that was; None: unknown
    late: int = 0  # rows that were dropped, because the watermark had passed them
    state: int | None = None  # rows in its state after the newest epoch; None: unknown


NONE: Final = Figures()


def figures_of(epochs: Epochs, least: Callable[[str], int]) -> dict[str, Figures]:
    """The figures of each query that has epochs in its present lineage."""
    return {uid: _of(epochs, own) for uid, own in _counting(epochs, least).items()}


def rates_of(epochs: Epochs, least: Callable[[str], int], now: int) -> dict[str, float]:
    """Rows per second of the minute before `now`, ms since 1970 UTC, of each query that `figures_of` has.

    The rows of an epoch are spread over its duration. A query that began less than a minute ago is measured since then.
    """
    return {uid: _rate(epochs, own, now) for uid, own in _counting(epochs, least).items()}


def _rate(epochs: Epochs, own: Ints, now: int) -> float:
    ms, at = np.maximum(epochs.ms[own], 1), epochs.at[own]
    began = at - ms
    present = epochs.incarnation[own] == epochs.incarnation[own].max()
    since = max(now - RATE_MS, int(began[present].min()))
    inside = np.clip(np.minimum(at, now) - np.maximum(began, since), 0, ms) / ms
    return round(float((np.maximum(epochs.rows[own], 0) * inside).sum()) / max(1, now - since) * 1000, 1)


def counts_of(epochs: Epochs) -> dict[int, tuple[dict[str, int], dict[str, int]]]:
    """By incarnation: how many epochs each query has committed, and how many rows it has read."""
    found: dict[int, tuple[dict[str, int], dict[str, int]]] = {}
    for uid, part in epochs.slices().items():
        numbers, place = np.unique(epochs.incarnation[part], return_inverse=True)
        many = np.bincount(place, minlength=len(numbers))
        rows = np.zeros(len(numbers), np.int64)
        np.add.at(rows, place, np.maximum(epochs.rows[part], 0))
        for number, committed, read in zip(numbers.tolist(), many.tolist(), rows.tolist(), strict=True):
            own = found.setdefault(number, ({}, {}))
            own[0][uid], own[1][uid] = committed, read
    return found


def _counting(epochs: Epochs, least: Callable[[str], int]) -> dict[str, Ints]:
    """The places of the epochs of each query that count, by number: of those of one number, that of the newest lineage.

    A restore gives numbers again: what was committed before it is in the history, and does not count any more.
    """
    found = {}
    for uid, part in epochs.slices().items():
        places = np.arange(part.start, part.stop)
        places = places[epochs.lineage[part] >= least(uid)]
        if len(places):
            order = places[np.lexsort((epochs.lineage[places], epochs.epoch[places]))]
            last = np.append(np.diff(epochs.epoch[order]) != 0, True)
            found[uid] = order[last]
    return found


def _of(epochs: Epochs, own: Ints) -> Figures:
    last = own[-1]
    at, ms, lag = int(epochs.at[last]), int(epochs.ms[last]), int(epochs.lag[last])
    state = int(epochs.state[last])
    return Figures(
        len(own),
        int(np.maximum(epochs.rows[own], 0).sum()),
        int(epochs.epoch[last]),
        None if ms == UNKNOWN else ms,
        at,
        None if lag == UNKNOWN else lag,
        None if ms == UNKNOWN else at - ms,
        int(np.maximum(epochs.late[own], 0).sum()),
        None if state == UNKNOWN else state,
    )


@dataclass(frozen=True)
class QueryLag:
    """Of one query, as the ledger and the heartbeat have it. Times are ms since 1970 UTC."""

    rows: int | None = None  # rows that it has still to read; None: unknown
    at: int | None = None  # when that was so; None: unknown
    sources: tuple[tuple[str, int, int], ...] = ()  # by source, if known: uid, rows, and when
    watermark: int | None = None
    newest_row: int | None = None  # the greatest event time that Spark has seen in its rows

    def to_json(self) -> dict[str, Any]:
        """Rows, time and sources, as the document has them."""
        return {"rows": self.rows, "at": self.at, "sources": [list(one) for one in self.sources]}


def said_of(said: Mapping[str, Any], uid: str) -> Mapping[str, Any]:
    """What a driver has said of one query; empty if it has said nothing."""
    found = said.get(uid)
    return found if isinstance(found, Mapping) else {}


def query_lag(said: Mapping[str, Any], rows: int | None, planned: int | None, *, finished: bool) -> QueryLag:
    """What is known of a query by its part of the newest heartbeat (malformed values are ignored) and its epochs."""
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


def exchange_of(said: Mapping[str, Any]) -> ExchangeSnapshot | None:
    """The exchange that a query writes, by its part of the newest heartbeat; malformed values are ignored."""
    found = said.get("exchange")
    if not isinstance(found, list) or len(found) != 4:
        return None
    name, *sizes = found
    rows, size, stored = map(_whole, sizes)
    if rows is None or size is None or stored is None:
        return None
    return ExchangeSnapshot(name=str(name), rows=rows, bytes=size, stored_bytes=stored)


def inboxes_of(said: Mapping[str, Any]) -> tuple[InboxSnapshot, ...]:
    """The inboxes that a query reads, by its part of the newest heartbeat; malformed ones are left out."""
    found = said.get("inboxes")
    return tuple(filter(None, map(_inbox, found))) if isinstance(found, list) else ()


def _inbox(said: Any) -> InboxSnapshot | None:
    try:
        return InboxSnapshot(
            name=str(said["name"]),
            gateways={str(state): int(number) for state, number in said["gateways"].items()},
            rejected={str(status): int(number) for status, number in said["rejected"].items()},
            oldest_s=None if said["oldest_s"] is None else float(said["oldest_s"]),
            **{name: int(said[name]) for name in _COUNTS},
            ack_p50_ms=_whole(said["ack_p50_ms"]),
            ack_p99_ms=_whole(said["ack_p99_ms"]),
        )
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


_COUNTS: Final = ("accepted", "acknowledged", "repeats", "conflicts", "old", "bytes", "max_bytes")


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
