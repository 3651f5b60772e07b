"""Key ranges as channels: their ids, the keys that they do not cover, and how the server's statistics divide the rest.

Without increments a channel's id contains its range. A restart takes the ranges of all channels that were ever started,
and divides the keys between them again: statistics may have changed since, and no plan has to be stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spark_ext.errors import NOTHING_DONE, DataError, ReplayError, refused
from spark_ext.model.offsets import Json
from spark_ext.sources.contract import Advance, Limit
from spark_ext.sources.positions import no_position
from spark_ext.sources.postgres.identity import Identity
from spark_ext.sources.postgres.increments import digest, rows_of
from spark_ext.sources.postgres.relation import INTEGERS, Relation, literal
from spark_ext.sources.postgres.slice import Slice
from spark_ext.sources.postgres.snapshot import View

if TYPE_CHECKING:
    import psycopg

NOTHING_READ = "everything that was committed; nothing of this epoch was read"

MOST = 1000
"""Maximum number of ranges of a table."""


@dataclass(frozen=True)
class KeyRange:
    """Keys from `low` (None: the least) to `high`; `high` is inclusive if `last`, else exclusive."""

    low: str | None
    high: str
    last: bool = False

    def id(self, key: str, token: str) -> str:
        """A channel's id; contains the whole range, and of what it is one."""
        return json.dumps([key, self.low, self.high, self.last, token], ensure_ascii=False)

    def to_json(self) -> list[Any]:
        """For a channel's data."""
        return [self.low, self.high, self.last]


def parse(channel: str) -> tuple[str, KeyRange, Identity | None]:
    """The key, the range and the identity of the table in an id; ids of older versions lack the last.

    Raises:
        ValueError: it is not such an id.
    """
    key, low, high, last, *more = json.loads(channel)
    return key, KeyRange(low, high, last), Identity.parse(more[0]) if more else None


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
    """The keys that `done` does not cover, in ranges of about that many rows, in the key's order.

    Raises:
        ReplayError: the ranges in `done` overlap in the order that keys have now.
    """
    done = list(done)
    closing = next((taken for taken in done if taken.last), None)
    end = closing.high if closing is not None else top(connection, relation)
    if end is None:
        return []
    own = {bound for taken in done for bound in (taken.low, taken.high) if bound is not None}
    fresh = _bounds(connection, relation, rows_per_range, end)
    ranks = _ranks(connection, relation, {*fresh, end, *own})
    # Equal keys can have several texts, such as 1.0 and 1.00: a bound is its rank, and keeps the text that it had.
    texts = {ranks[bound]: bound for bound in (*fresh, end, *own)}
    covered = _covered(done, ranks, relation)
    edges = sorted({ranks[bound] for bound in (*own, end)})
    if edges[-1] != ranks[end]:
        # The rows above it have been deleted since, and their range is covered.
        edges = sorted({ranks[bound] for bound in own})
    inside = sorted({ranks[bound] for bound in fresh})
    out: list[KeyRange] = []
    for low, high in pairwise([_LEAST, *edges]):
        # Bounds from the statistics are used only where nothing is covered yet.
        if covered.get(low) != high:
            steps = [low, *(rank for rank in inside if low < rank < high), high]
            out += [KeyRange(texts.get(one), texts[other]) for one, other in pairwise(steps)]
    if closing is not None or edges[-1] != ranks[end]:
        return out
    if out and ranks[out[-1].high] == ranks[end]:
        return [*out[:-1], KeyRange(out[-1].low, out[-1].high, last=True)]
    return [*out, KeyRange(texts[ranks[end]], texts[ranks[end]], last=True)]


_LEAST = 0
"""The rank of the lower end of a range without one; those of keys begin at 1."""


def _covered(done: Iterable[KeyRange], ranks: Mapping[str, int], relation: Relation) -> dict[int, int]:
    """The upper ends of covered ranges by their lower ends, as ranks."""
    found = sorted((_LEAST if one.low is None else ranks[one.low], ranks[one.high], one.last) for one in done)
    for (low, high, last), (following, _, _) in pairwise([*found, (math.inf, math.inf, False)]):
        if not low <= high <= following or (last and following != math.inf):
            raise ReplayError(
                f"the ranges of '{relation.key}' that were read overlap: its values no longer have the order that they "
                "had then",
                operator=relation.source,
                kept=NOTHING_READ,
                do="undo the change of the column's type or collation, or start the job with a new state to read "
                "everything again",
            )
    return {low: high for low, high, _ in found}


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


def _ranks(connection: psycopg.Connection[Any], relation: Relation, bounds: Collection[str]) -> dict[str, int]:
    """The ranks of keys given as text, from 1 on, in the column's own order; equal keys have the same one."""
    from psycopg import sql

    # The union has the collation of the column itself. Without parameters, as a query may contain a `%`.
    query = sql.SQL(
        "SELECT u.b, dense_rank() OVER (ORDER BY u.k) FROM (SELECT t.{key} AS k, NULL::text AS b FROM {source} t "
        "WHERE false UNION ALL SELECT b::{type}, b FROM unnest({bounds}::text[]) b) u"
    ).format(
        key=sql.Identifier(relation.key),
        source=sql.SQL(relation.source),
        type=sql.SQL(relation.key_type),
        bounds=sql.Literal(list(bounds)),
    )
    return dict(connection.execute(query).fetchall())


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


def seek(view: View, relation: Relation, found: KeyRange, position: Json, who: str) -> dict[str, Any]:
    """The position of a key in a range.

    Args:
        view: of the planner.
        relation: the table or query.
        found: the range.
        position: the key, or an object with it as `upto`.
        who: source and channel.

    Raises:
        ConfigurationError: it is not a key of this range.
    """
    key = position.get("upto") if isinstance(position, dict) else position
    within = f"from {found.low} to {found.high}" if found.low is not None else f"up to {found.high}"
    wanted = f"a value of '{relation.key}' {within}"
    if isinstance(key, bool) or not isinstance(key, (str, int, float)):
        raise no_position(position, wanted, who)
    cast = f"{literal(str(key))}::{relation.key_type}"
    conditions = [f"{cast} <= {literal(found.high)}::{relation.key_type}"]
    conditions += [] if found.low is None else [f"{cast} >= {literal(found.low)}::{relation.key_type}"]
    text = view.text_of(f"SELECT ({cast})::text WHERE {' AND '.join(conditions)}")
    if text is None:
        raise no_position(position, wanted, who)
    return {"upto": text}


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
    over = most is not None and count > most
    return Advance(position, upto is None, rows=count, bytes=count * relation.width, whole=over)
