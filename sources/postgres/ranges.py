"""Key ranges as channels: their ids, the keys that they do not cover, and how the server's statistics divide the rest.

Without increments a channel's id contains its range. A restart takes the ranges of all channels that were ever started,
and divides the keys between them again: statistics may have changed since, and no plan has to be stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from spark_ext.errors import NEW_QUERY, ReplayError, refused
from spark_ext.model.offsets import Json
from spark_ext.sources.contract import Advance, Limit
from spark_ext.sources.positions import no_position
from spark_ext.sources.postgres.identity import KEPT, Identity
from spark_ext.sources.postgres.increments import digest, null_key, rows_of
from spark_ext.sources.postgres.key import Bound, Key, bound_of, literal, shown
from spark_ext.sources.postgres.relation import INTEGERS, Relation
from spark_ext.sources.postgres.slice import Slice
from spark_ext.sources.postgres.snapshot import View

if TYPE_CHECKING:
    import psycopg

MOST = 1000  # maximum number of ranges of a table


@dataclass(frozen=True)
class KeyRange:
    """Keys from `low` (None: the least) to `high`; `high` is inclusive if `last`, else exclusive."""

    low: Bound | None
    high: Bound
    last: bool = False

    @classmethod
    def of(cls, stored: Sequence[Json]) -> KeyRange:
        """The opposite of `to_json`."""
        low, high, last = stored
        found = bound_of(high)
        assert found is not None
        return cls(bound_of(low), found, last)

    def id(self, key: Key, token: str) -> str:
        """A channel's id; contains the whole range, and of what it is one."""
        return json.dumps([key.stored(key.columns), *self.to_json(), token], ensure_ascii=False)

    def to_json(self) -> list[Any]:
        """For a channel's data."""
        bounds = (list(one) if isinstance(one, tuple) else one for one in (self.low, self.high))
        return [*bounds, self.last]


def parse(channel: str) -> tuple[Json, KeyRange, Identity]:
    """An id's key as stored, its range, and the table's identity."""
    key, low, high, last, token = json.loads(channel)
    return key, KeyRange.of((low, high, last)), Identity.parse(token)


def top(connection: psycopg.Connection[Any], relation: Relation) -> Bound | None:
    """The greatest key as text; None without rows."""
    key = relation.key
    found = connection.execute(
        f"SELECT {key.texts} FROM {relation.source} t WHERE {key.is_complete} ORDER BY {key.descending} LIMIT 1"
    ).fetchone()
    return None if found is None else key.bound(found)


def cut(
    connection: psycopg.Connection[Any], relation: Relation, rows_per_range: int, done: Iterable[KeyRange] = ()
) -> list[KeyRange]:
    """The keys that `done` does not cover, in ranges of about that many rows, in the key's order."""
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


_LEAST = 0  # the rank of the lower end of a range without one; those of keys begin at 1


def _covered(done: Iterable[KeyRange], ranks: Mapping[Bound, int], relation: Relation) -> dict[int, int]:
    """The upper ends of covered ranges by their lower ends, as ranks."""
    found = sorted((_LEAST if one.low is None else ranks[one.low], ranks[one.high], one.last) for one in done)
    for (low, high, last), (following, _, _) in pairwise([*found, (math.inf, math.inf, False)]):
        if not low <= high <= following or (last and following != math.inf):
            raise ReplayError(
                f"the ranges of '{relation.key.name}' that were read overlap: its values no longer have the order that "
                "they had then",
                operator=relation.source,
                kept=KEPT,
                do=f"undo the change of the column's type or collation; or read everything again {NEW_QUERY}",
            )
    return {low: high for low, high, _ in found}


def refuse_nulls(view: View, relation: Relation) -> None:
    """Refuse null keys, which no range contains. A table's key is NOT NULL; a query's has to be checked."""
    if relation.has_xid:
        return
    among = "" if relation.where is None else f"({relation.where}\n) AND "
    found = view.connection.execute(
        f"SELECT EXISTS (SELECT FROM {relation.source} t WHERE {among}{relation.key.is_null})"
    ).fetchone()
    if found == (True,):
        raise null_key(relation, view.who)


def _ranks(connection: psycopg.Connection[Any], relation: Relation, bounds: Collection[Bound]) -> dict[Bound, int]:
    """The ranks of keys given as text, from 1 on, in the key's own order; equal keys have the same one."""
    from psycopg import sql

    every, key = list(bounds), relation.key
    columns = [[bound] if isinstance(bound, str) else list(bound) for bound in every]
    places = range(len(key.columns))
    # The union has the collations of the columns themselves. Without parameters, as a query may contain a `%`.
    query = sql.SQL(
        "SELECT u.n, dense_rank() OVER (ORDER BY {order}) FROM (SELECT {own}, NULL::bigint AS n FROM {source} t "
        "WHERE false UNION ALL SELECT {given}, b.n FROM unnest({texts}) WITH ORDINALITY b({names}, n)) u"
    ).format(
        order=sql.SQL(", ".join(f"u.k{place}" for place in places)),
        own=sql.SQL(", ".join(f"{name} AS k{place}" for place, name in enumerate(key.quoted))),
        source=sql.SQL(relation.source),
        given=sql.SQL(", ".join(f"b.k{place}::{kind}" for place, kind in enumerate(key.types))),
        texts=sql.SQL(", ").join(
            sql.SQL("{}::text[]").format(sql.Literal([bound[place] for bound in columns])) for place in places
        ),
        names=sql.SQL(", ".join(f"k{place}" for place in places)),
    )
    return {every[number - 1]: rank for number, rank in connection.execute(query).fetchall()}


def _bounds(connection: psycopg.Connection[Any], relation: Relation, rows_per_range: int, end: Bound) -> list[Bound]:
    """Bounds of the new ranges: those of the histogram, or even steps between integers."""
    rows = relation.rows
    if rows < 0:
        counted = connection.execute(f"SELECT count(*) FROM {relation.source} t").fetchone()
        rows = float(counted[0]) if counted else 0.0
    wanted = min(MOST, math.ceil(rows / rows_per_range))
    if wanted <= 1:
        return []
    found = _histogram(connection, relation)
    several = len(relation.key.columns) > 1
    if len(found) > wanted:
        few = found[:: max(1, round(len(found) / wanted))][1:]
        return _completed(connection, relation, few) if several else [*few]
    if several:
        return _counted(connection, relation, wanted)
    if relation.key.kinds[0] not in INTEGERS or not isinstance(end, str):
        return [*(found or _measured(connection, relation, wanted))]
    if not found:
        least = connection.execute(f"SELECT min({relation.key.order}) FROM {relation.source} t").fetchone()
        found = [str(least[0]), end] if least and least[0] is not None else []
    numbers = [int(bound) for bound in found]
    per_step = math.ceil(wanted / max(1, len(numbers) - 1))
    steps = {low + (high - low) * part // per_step for low, high in pairwise(numbers) for part in range(per_step)}
    return [str(number) for number in sorted(steps)[1:]]


def _completed(connection: psycopg.Connection[Any], relation: Relation, values: Sequence[str]) -> list[Bound]:
    """Of values of the key's first column, the least keys that have them, or greater ones."""
    from psycopg import sql

    key = relation.key
    query = sql.SQL(
        # With their table, as names alone may be those of columns.
        "SELECT k.* FROM unnest({values}::text[]) bounds(value) CROSS JOIN LATERAL (SELECT {texts} FROM {source} t "
        "WHERE {first} >= bounds.value::{type} ORDER BY {order} LIMIT 1) k"
    ).format(
        values=sql.Literal(list(values)),
        texts=sql.SQL(key.texts),
        source=sql.SQL(relation.source),
        first=sql.SQL(key.quoted[0]),
        type=sql.SQL(key.types[0]),
        order=sql.SQL(key.order),
    )
    return [key.bound(row) for row in connection.execute(query).fetchall()]


def _counted(connection: psycopg.Connection[Any], relation: Relation, wanted: int) -> list[Bound]:
    """Bounds of ranges with equal numbers of rows, by passing over all keys in their order, as an index has them."""
    key = relation.key
    names = [f"k{place}" for place in range(len(key.columns))]
    texts = ", ".join(f"{column}::text AS {name}" for column, name in zip(key.quoted, names, strict=True))
    found = connection.execute(
        f"SELECT {', '.join(names)} FROM (SELECT {texts}, row_number() OVER (ORDER BY {key.order}) AS number, "
        f"count(*) OVER () AS count FROM {relation.source} t WHERE {key.is_complete}) r "
        f"WHERE number % greatest(1, ceil(count / {wanted}::numeric)) = 0"
    ).fetchall()
    return [key.bound(row) for row in found]


def _measured(connection: psycopg.Connection[Any], relation: Relation, wanted: int) -> list[str]:
    """Bounds of ranges with equal numbers of rows, by sorting all keys on the server."""
    shares = ", ".join(str(part / wanted) for part in range(1, wanted))
    found = connection.execute(
        f"SELECT (percentile_disc(ARRAY[{shares}]) WITHIN GROUP (ORDER BY {relation.key.order}))::text[] "
        f"FROM {relation.source} t"
    ).fetchone()
    return [] if found is None or found[0] is None else list(dict.fromkeys(found[0]))


def _histogram(connection: psycopg.Connection[Any], relation: Relation) -> list[str]:
    """Bounds of ranges with equal numbers of rows, from `ANALYZE`; [] if they are missing or not readable.

    Of the first of several columns, and only if no value of it is frequent: a frequent one is not in the histogram.
    """
    if relation.table is None:
        return []
    found = connection.execute(
        "SELECT histogram_bounds::text::text[] FROM pg_stats "
        "WHERE schemaname = %s AND tablename = %s AND attname = %s AND NOT inherited "
        "AND (%s OR most_common_vals IS NULL)",
        (*relation.table, relation.key.columns[0], len(relation.key.columns) == 1),
    ).fetchone()
    return [] if found is None or found[0] is None else list(found[0])


def seek(view: View, relation: Relation, found: KeyRange, position: Json, who: str) -> dict[str, Any]:
    """The position of a key in a range; the key is given alone, or as `upto` of an object."""
    given = position.get("upto") if isinstance(position, dict) else position
    key, high = relation.key, shown(found.high)
    within = f"from {shown(found.low)} to {high}" if found.low is not None else f"up to {high}"
    several = len(key.columns) > 1
    wanted = f"a list of values of '{key.name}' {within}" if several else f"a value of '{key.name}' {within}"
    parts = given if several and isinstance(given, list) else [given]
    if len(parts) != len(key.columns) or not all(_is_plain(part) for part in parts):
        raise no_position(position, wanted, who)
    value = tuple(str(part) for part in parts)
    at = key.value(key.bound(value))
    conditions = [f"{at} <= {key.value(found.high)}"]
    conditions += [] if found.low is None else [f"{at} >= {key.value(found.low)}"]
    texts = ", ".join(f"({literal(part)}::{kind})::text" for part, kind in zip(value, key.types, strict=True))
    row = view.row_of(f"SELECT {texts} WHERE {' AND '.join(conditions)}")
    if row is None:
        raise no_position(position, wanted, who)
    return {"upto": key.stored(row)}


def _is_plain(value: Json) -> bool:
    return not isinstance(value, bool) and isinstance(value, (str, int, float))


def advance(view: View, relation: Relation, rest: Slice, limit: Limit) -> Advance:
    """A step in a range: the rest of it, or about as many rows as the limit allows."""
    key, most, upto = relation.key, rows_of(limit, relation), None
    if most is not None:
        keys = (
            f"SELECT {key.texts} FROM {relation.source} t WHERE {rest.where} ORDER BY {key.order} LIMIT 1 OFFSET {most}"
        )
        found = view.connection.execute(keys).fetchone()
        upto = None if found is None else key.bound(found)
    step = rest if upto is None else rest.below_key(upto)
    count, noted = digest(view, step)
    if upto is not None and not count:
        what = f"more than {most} rows have the same key '{shown(upto)}' in '{key.name}'"
        raise refused(what, view.who, "name columns without repeated values in the option 'key'")
    position = {"upto": list(upto) if isinstance(upto, tuple) else upto, **noted}
    # The key of a query may not be unique, although it should be; then this is more than the limit.
    over = most is not None and count > most
    return Advance(position, upto is None, rows=count, bytes=count * relation.width, whole=over)
