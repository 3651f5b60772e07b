"""The partitions of a table that is read with increments: one that is attached must not bring rows that were passed.

A row comes into a partitioned table by a statement of its own, or with a partition that was filled before it was
attached. Then its transaction may be older than the mark up to which the increments were read, or its value smaller:
no increment would contain it. So a position has the partitions that were there when it was planned, and the rows of
each other one are looked at, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from spark_ext.errors import NEW_QUERY, ReplayError
from spark_ext.sources.postgres.identity import KEPT
from spark_ext.sources.postgres.relation import Relation

if TYPE_CHECKING:
    import psycopg

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
    """Refuse partitions with rows that the increments have passed before these belonged to the table.

    Args:
        fresh: numbers of the partitions that were not there when the mark was set.
    """
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
