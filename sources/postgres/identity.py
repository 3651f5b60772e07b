"""What a half-read table is known by: which table it is, which columns are its key, in what order, where its rows are.

A channel's id or data contains a token of it. A later run compares: another table with the same name, a query with
another text, or keys in another order would make it read rows twice, or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_ext.errors import NEW_QUERY, ReplayError
from spark_ext.sources.postgres.relation import XID, Relation, literal, quoted

if TYPE_CHECKING:
    import psycopg

KEPT = "everything that was committed; nothing of this epoch was read"
_COLLATED = ("text", "varchar", "bpchar")
_NUMBERS = ("int2", "int4", "int8", "numeric")

# The definition of a view is part of what it is; rows of a partitioned table are stored with its partitions.
_TABLE = """
SELECT c.oid::text, d.oid::text, CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) ELSE '' END,
  concat_ws(' ', pg_relation_filenode(c.oid),
    (SELECT string_agg(pg_relation_filenode(p.relid)::text, ' ' ORDER BY p.relid) FROM pg_partition_tree(c.oid) p))
FROM pg_class c, pg_database d WHERE c.oid = to_regclass(%s) AND d.datname = current_database()
"""

# A column keeps its number under any name; one that is dropped and added anew has another.
_COLUMNS = """
SELECT string_agg(a.attnum::text, ' ' ORDER BY n.place)
FROM unnest(%s::text[]) WITH ORDINALITY n(name, place)
JOIN pg_attribute a ON a.attrelid = to_regclass(%s) AND a.attname = n.name AND NOT a.attisdropped
"""

_DEFAULT_ORDER = """
SELECT concat_ws(' ', d->>'datlocprovider', d->>'datcollate', coalesce(d->>'datlocale', d->>'daticulocale'))
FROM (SELECT to_jsonb(p) AS d FROM pg_database p WHERE p.datname = current_database()) f
"""


@dataclass(frozen=True)
class Identity:
    """What a table, view or query is known by. Hashes, except for the transaction."""

    source: str  # the table and its database, the definition of a view, or the text of a query
    order: str  # types and collations of the columns in whose order it is read
    storage: str  # changes when all rows are rewritten: TRUNCATE, VACUUM FULL, some forms of ALTER TABLE
    next: int  # no transaction from it on had ended
    columns: str | None = None  # which columns of the table these are, whatever their names; None for a query

    @property
    def token(self) -> str:
        """As text, for a channel's id or data."""
        known = "" if self.columns is None else f".{self.columns}"
        return f"{self.source}.{self.order}.{self.storage}.{self.next}{known}"

    @classmethod
    def parse(cls, token: str) -> Identity:
        """The opposite of `token`."""
        source, order, storage, following, *columns = token.split(".")
        return cls(source, order, storage, int(following), *columns)


def identify(
    connection: psycopg.Connection[Any], relation: Relation, is_table: bool, column: str | None, following: int
) -> Identity:
    """Look a table, view or query up."""
    facts: tuple[Any, ...] | None = (relation.source, "", "", None)
    if is_table:
        facts = connection.execute(_TABLE, (relation.source,)).fetchone()
    if facts is None:
        raise changed(f"{relation.source} was dropped", relation.source)
    names = [name for name in (*relation.key.columns, column) if name is not None]
    order = [_order_of(connection, relation, name) for name in names]
    storage = facts[3] if relation.has_xid else None
    condition = [] if relation.where is None else [relation.where]
    columns = _columns(connection, relation, names) if is_table else None
    return Identity(_hashed(*facts[:3], *condition), _hashed(*order), _hashed(storage or ""), following, columns)


def _columns(connection: psycopg.Connection[Any], relation: Relation, names: list[str]) -> str | None:
    found = connection.execute(_COLUMNS, (names, relation.source)).fetchone()
    return None if found is None or found[0] is None else _hashed(found[0])


def _order_of(connection: psycopg.Connection[Any], relation: Relation, name: str) -> str:
    kind = next(column.kind for column in relation.columns if column.name == name)
    if kind in _NUMBERS:
        return "number"  # a wider type of numbers leaves their order as it is
    if kind not in _COLLATED:
        return kind
    # Of the column of a query as well, without reading a row.
    found = connection.execute(
        f"SELECT COLLATION FOR ((SELECT t.{quoted(name)} FROM {relation.source} t WHERE false))"
    ).fetchone()
    collation = str(found[0]) if found else ""
    default = connection.execute(_DEFAULT_ORDER).fetchone() if collation.strip('"') == "default" else None
    return f"{'bpchar' if kind == 'bpchar' else 'text'} {collation} {default[0] if default else ''}"


def _hashed(*parts: str) -> str:
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=4).hexdigest()


def compare(
    connection: psycopg.Connection[Any],
    relation: Relation,
    known: Iterable[Identity],
    now: Identity,
    who: str,
    *,
    whole: bool = True,
) -> None:
    """Refuse another table, another order of keys, and a table that was emptied, whether or not it was filled again.

    `whole` means that rows are still to be read that were there when the first channel was made.
    """
    known = list(known)
    if any(one.source != now.source for one in known):
        raise changed(
            f"{relation.source} is not what was read before: the table was dropped and created again, or the options, "
            "the view or the query were changed",
            who,
        )
    if any(one.order != now.order for one in known):
        raise changed(
            f"the type or collation of the key '{relation.key.name}' (or of the increasing column) was changed, and "
            "with it the order in which rows were read",
            who,
        )
    if any(one.columns != now.columns for one in known):
        raise changed(
            f"the key '{relation.key.name}' (or the increasing column) is the name of another column now: the one by "
            "which rows were read so far was renamed, or dropped and added again",
            who,
        )
    if whole and known and all(one.storage != now.storage for one in known):
        first = min(one.next for one in known)
        query = f"SELECT EXISTS (SELECT FROM {relation.source} t WHERE {XID} < {first})"
        if connection.execute(query).fetchone() == (False,):
            raise changed(
                f"{relation.source} was emptied (TRUNCATE), or all of its rows were rewritten (ALTER TABLE), before "
                "it was read to its end",
                who,
            )


def refuse_restart(
    connection: psycopg.Connection[Any], relation: Relation, column: str, mark: str, following: int, who: str
) -> None:
    """Refuse a table that was emptied and filled again with values up to the mark, which no increment would contain."""
    older = f"EXISTS (SELECT FROM {relation.source} t WHERE {XID} < {following})"
    below = f"EXISTS (SELECT FROM {relation.source} t WHERE t.{quoted(column)} <= {literal(mark)})"
    if connection.execute(f"SELECT {below} AND NOT {older}").fetchone() == (True,):
        raise changed(
            f"{relation.source} was emptied and filled again, and '{column}' has values up to {mark} again, which was "
            "the last one that was read: these rows would be left out",
            who,
        )


def changed(what: str, who: str) -> ReplayError:
    """The error of input that is not the same any more."""
    return ReplayError(what, operator=who, kept=KEPT, do=f"undo the change; or read everything again {NEW_QUERY}")


# -- partitions of a table that is read with increments ---------------------------------------------------------------
# A row comes into a partitioned table by a statement of its own, or with a partition that was filled before it was
# attached. Then its transaction may be older than the mark up to which the increments were read, or its value smaller:
# no increment would contain it. So a position has the partitions that were there when it was planned, and the rows of
# each other one are looked at, once.


# As the server finds them for a query: in the catalog as it is now, whatever the snapshot.
_LEAVES = "SELECT relid::oid::bigint FROM pg_partition_tree(to_regclass(%s)) WHERE isleaf ORDER BY 1"

_NAMED = """
SELECT oid::regclass::text,
  coalesce(has_table_privilege(oid, 'SELECT') AND NOT row_security_active(oid) AND NOT row_security_active(root), false)
FROM (SELECT %s::bigint::oid AS oid, to_regclass(%s)::oid AS root) r
"""


def leaves(connection: psycopg.Connection[Any], relation: Relation) -> list[int]:
    """The numbers of the partitions that hold a partitioned table's rows, in order."""
    return [row[0] for row in connection.execute(_LEAVES, (relation.source,)).fetchall()]


def refuse_passed(
    connection: psycopg.Connection[Any], relation: Relation, fresh: Iterable[int], passed: str, which: str, who: str
) -> None:
    """Refuse new partitions with rows that the increments have passed before these belonged to the table."""
    condition = passed if relation.where is None else f"{passed} AND ({relation.where}\n)"
    for number in fresh:
        found = connection.execute(_NAMED, (number, relation.source)).fetchone()
        assert found is not None
        name, direct = found
        # With the privileges of the whole table only, the server has to find the partition's rows among all others.
        source = f"{name} t WHERE" if direct else f"{relation.source} t WHERE t.tableoid = {int(number)}::oid AND"
        if connection.execute(f"SELECT EXISTS (SELECT FROM {source} {condition})").fetchone() == (True,):
            raise ReplayError(
                f"the partition {name} was attached to {relation.source}, and has rows {which}: the increments had "
                "been read that far before it was attached, so these rows would be left out, unless they were read as "
                "rows of another partition",
                operator=who,
                kept=KEPT,
                do="detach the partition, and insert its rows into the table instead; or send the channel 'increment' "
                "to a position (seek), which accepts the partitions as they are; or read everything again "
                f"{NEW_QUERY}",
            )
