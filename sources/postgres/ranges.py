"""Key ranges as channels: their ids, the keys that they do not cover, and how the server's statistics divide the rest.

Without increments a channel's id contains its range. A restart takes the ranges of all channels that were ever started,
and divides the keys between them again: statistics may have changed since, and no plan has to be stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spark_ext.errors import NOTHING_DONE, DataError, refused
from spark_ext.sources.contract import Advance, Limit
from spark_ext.sources.postgres.increments import digest, rows_of
from spark_ext.sources.postgres.relation import INTEGERS, Relation
from spark_ext.sources.postgres.slice import Slice
from spark_ext.sources.postgres.snapshot import View

if TYPE_CHECKING:
    import psycopg

MOST = 1000
"""Maximum number of ranges of a table."""


@dataclass(frozen=True)
class KeyRange:
    """Keys from `low` (None: the least) to `high`; `high` is inclusive if `last`, else exclusive."""

    low: str | None
    high: str
    last: bool = False

    def id(self, key: str) -> str:
        """A channel's id; contains the whole range."""
        return json.dumps([key, self.low, self.high, self.last], ensure_ascii=False)

    def to_json(self) -> list[Any]:
        """For a channel's data."""
        return [self.low, self.high, self.last]


def parse(channel: str) -> tuple[str, KeyRange]:
    """The key and the range in an id.

    Raises:
        ValueError: it is not such an id.
    """
    key, low, high, last = json.loads(channel)
    return key, KeyRange(low, high, last)


def top(connection: psycopg.Connection[Any], relation: Relation) -> str | None:
    """The greatest key as text; None if there are no rows."""
    found = connection.execute(
        f"SELECT t.{relation.quoted_key}::text FROM {relation.source} t WHERE t.{relation.quoted_key} IS NOT NULL "
        f"ORDER BY t.{relation.quoted_key} DESC LIMIT 1"
    ).fetchone()
    return None if found is None else str(found[0])


def cut(
    connection: psycopg.Connection[Any], relation: Relation, rows_per_range: int, done: Iterable[KeyRange] = ()
) -> list[KeyRange]:
    """The keys that `done` does not cover, in ranges of about that many rows, in the key's order."""
    covered = {taken.low: taken for taken in done}
    closing = next((taken for taken in covered.values() if taken.last), None)
    end = closing.high if closing is not None else top(connection, relation)
    if end is None:
        return []
    own = {bound for taken in covered.values() for bound in (taken.low, taken.high) if bound is not None}
    bounds = _in_order(connection, relation, [*own, end])
    if bounds[-1] != end:
        # The rows above it have been deleted since, and their range is covered.
        bounds = [bound for bound in bounds if bound in own]
    fresh = _bounds(connection, relation, rows_per_range, end)
    out: list[KeyRange] = []
    for low, high in zip([None, *bounds], bounds, strict=False):
        # Bounds from the statistics are used only where nothing is covered yet.
        if low not in covered or covered[low].high != high:
            out += _pieces(connection, relation, low, high, fresh)
    if closing is not None or bounds[-1] != end:
        return out
    if out and out[-1].high == end:
        return [*out[:-1], KeyRange(out[-1].low, end, last=True)]
    return [*out, KeyRange(end, end, last=True)]


def refuse_nulls(view: View, relation: Relation) -> None:
    """Refuse null keys, which no range would contain; the key of a table is NOT NULL, in a query it has to be checked.

    Raises:
        DataError: a row's key is null.
    """
    if relation.has_xid:
        return
    found = view.connection.execute(
        f"SELECT EXISTS (SELECT FROM {relation.source} t WHERE t.{relation.quoted_key} IS NULL)"
    ).fetchone()
    if found == (True,):
        raise DataError(
            f"there are rows whose key '{relation.key}' is null",
            operator=view.who,
            kept=NOTHING_DONE,
            do="exclude such rows in the query, or name a column without nulls in the option 'key'",
        )


def _pieces(
    connection: psycopg.Connection[Any], relation: Relation, low: str | None, high: str, fresh: Sequence[str]
) -> list[KeyRange]:
    inside = _between(connection, relation, low, high, fresh)
    lows, highs = [low, *inside], [*inside, high]
    return [KeyRange(one, other) for one, other in zip(lows, highs, strict=True)]


def _between(
    connection: psycopg.Connection[Any], relation: Relation, low: str | None, high: str, bounds: Sequence[str]
) -> list[str]:
    if relation.key_kind in INTEGERS:
        return [one for one in bounds if (low is None or int(low) < int(one)) and int(one) < int(high)]
    condition = f"k < {relation.bound(high)}" + (f" AND k > {relation.bound(low)}" if low is not None else "")
    return _sorted(connection, relation, bounds, condition)


def _in_order(connection: psycopg.Connection[Any], relation: Relation, bounds: Sequence[str]) -> list[str]:
    """In the key's own order, which for text is the server's collation."""
    if relation.key_kind in INTEGERS:
        return [str(number) for number in sorted({int(bound) for bound in bounds})]
    return _sorted(connection, relation, bounds, "true")


def _sorted(
    connection: psycopg.Connection[Any], relation: Relation, bounds: Sequence[str], condition: str
) -> list[str]:
    # The union has the collation of the column itself.
    query = (
        f"SELECT k::text FROM (SELECT t.{relation.quoted_key} AS k FROM {relation.source} t WHERE false "
        f"UNION SELECT b::{relation.key_type} FROM unnest(%s::text[]) b) u WHERE {condition} ORDER BY k"
    )
    return [row[0] for row in connection.execute(query, (list(bounds),)).fetchall()]


def _bounds(connection: psycopg.Connection[Any], relation: Relation, rows_per_range: int, end: str) -> list[str]:
    """Bounds of the new ranges: those of the histogram, or even steps between integers."""
    rows = relation.rows
    if rows < 0:
        counted = connection.execute(f"SELECT count(*) FROM {relation.source} t").fetchone()
        rows = float(counted[0]) if counted else 0.0
    wanted = min(MOST, math.ceil(rows / rows_per_range))
    if wanted <= 1:
        return []
    found = _histogram(connection, relation)
    if len(found) > wanted:
        return found[:: max(1, round(len(found) / wanted))][1:]
    if relation.key_kind not in INTEGERS:
        return found or _measured(connection, relation, wanted)
    if not found:
        least = connection.execute(f"SELECT min(t.{relation.quoted_key}) FROM {relation.source} t").fetchone()
        found = [str(least[0]), end] if least and least[0] is not None else []
    numbers = [int(bound) for bound in found]
    per_step = math.ceil(wanted / max(1, len(numbers) - 1))
    steps = {low + (high - low) * part // per_step for low, high in pairwise(numbers) for part in range(per_step)}
    return [str(number) for number in sorted(steps)[1:]]


def _measured(connection: psycopg.Connection[Any], relation: Relation, wanted: int) -> list[str]:
    """Bounds of ranges with equal numbers of rows, by sorting all keys on the server."""
    shares = ", ".join(str(part / wanted) for part in range(1, wanted))
    found = connection.execute(
        f"SELECT (percentile_disc(ARRAY[{shares}]) WITHIN GROUP (ORDER BY t.{relation.quoted_key}))::text[] "
        f"FROM {relation.source} t"
    ).fetchone()
    return [] if found is None or found[0] is None else list(dict.fromkeys(found[0]))


def _histogram(connection: psycopg.Connection[Any], relation: Relation) -> list[str]:
    """Bounds of ranges with equal numbers of rows, from `ANALYZE`; [] if there are none, or they are not readable."""
    if relation.table is None:
        return []
    found = connection.execute(
        "SELECT histogram_bounds::text::text[] FROM pg_stats "
        "WHERE schemaname = %s AND tablename = %s AND attname = %s AND NOT inherited",
        (*relation.table, relation.key),
    ).fetchone()
    return [] if found is None or found[0] is None else list(found[0])


def advance(view: View, relation: Relation, rest: Slice, limit: Limit) -> Advance:
    """A step in a range: the rest of it, or about as many rows as the limit allows.

    Args:
        view: of the planner.
        relation: the table or query.
        rest: the rest of the range.
        limit: of the epoch.
    """
    key, most, upto = f"t.{relation.quoted_key}", rows_of(limit, relation), None
    if most is not None:
        keys = f"SELECT {key}::text FROM {relation.source} t WHERE {rest.where} ORDER BY {key} LIMIT 1 OFFSET {most}"
        found = view.connection.execute(keys).fetchone()
        upto = None if found is None else str(found[0])
    step = rest if upto is None else rest.below_key(upto)
    count, noted = digest(view, step)
    if upto is not None and not count:
        raise refused(
            f"more than {most} rows have the same key '{upto}' in '{relation.key}'",
            view.who,
            "name a column without repeated values in the option 'key'",
        )
    position = {"upto": upto, **noted}
    # The key of a query may not be unique, although it should be; then this is more than the limit.
    rows = count if most is None or count <= most else None
    return Advance(position, upto is None, rows=rows, bytes=count * relation.width)
