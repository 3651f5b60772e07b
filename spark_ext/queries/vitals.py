"""What a driver says of its queries with each heartbeat: figures that change while no epoch is committed. Pure.

The page, the report and `top` read them beside the ledger, whose newest row is as old as the newest epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spark_ext.spark.watching.query_events import event_time

if TYPE_CHECKING:
    from spark_ext.queries.history import Figures


def vitals(queries: Iterable[tuple[str, Figures]]) -> dict[str, dict[str, Any]]:
    """By uid, of each query of which something is known: `lag`, `watermark` and `newest_row`.

    A lag is `[rows, at]` by source, as far as it is known, and `complete` says whether these are all sources of the
    query. Times are ms since 1970 UTC.

    Args:
        queries: their uids and figures.
    """
    return {uid: found for uid, figures in queries if (found := _of(figures))}


def _of(figures: Figures) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lag = figures.lag
    known = {
        uid: [one.lag_rows, round(one.at * 1000)]
        for uid, one in lag.sources.items()
        if one.lag_rows is not None and one.at is not None
    }
    if known:
        found |= {"lag": known, "complete": lag.rows is not None}
    for name, text in (("watermark", figures.watermark), ("newest_row", figures.newest_row)):
        at = event_time(text)
        if at is not None:
            found[name] = _ms(at)
    return found


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
