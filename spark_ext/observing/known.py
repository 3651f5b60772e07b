"""What earlier Observers of a state directory have seen: which query is which, and how far each had come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_ext.ledger.identity import FIRST_LINEAGE, lineages
from spark_ext.ledger.schema import EpochRow, JobRow
from spark_ext.observing.identity import Known

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger


@dataclass
class Memory:
    """What is known of queries."""

    known: Known = field(default_factory=Known)
    lineages: dict[str, int] = field(default_factory=dict)
    """By uid, the lineage; those that are not here are in the first."""
    newest: dict[str, int] = field(default_factory=dict)
    """By uid, the newest epoch that was recorded in its lineage."""

    @classmethod
    def read(cls, ledger: Ledger) -> Memory:
        """Read the ledger."""
        epochs = ledger.table(EpochRow).read(["query", "query_id", "lineage", "epoch"])
        rows = zip(*(column.to_pylist() for column in epochs.columns), strict=True)
        return cls.of(rows, ledger.table(JobRow).rows([("event", "=", "reset")]))

    @classmethod
    def of(cls, epochs: Iterable[tuple[str, str, int, int]], resets: Iterable[JobRow]) -> Memory:
        """From rows. Pure."""
        begun = lineages(resets)
        uids: dict[str, tuple[int, str]] = {}
        holders: dict[str, tuple[int, str]] = {}
        newest: dict[tuple[str, int], int] = {}
        queries = set()
        for query, query_id, lineage, epoch in epochs:
            queries.add(query)
            uids[query_id] = max(uids.get(query_id, (0, "")), (lineage, query))
            holders[query] = max(holders.get(query, (0, "")), (lineage, query_id))
            newest[query, lineage] = max(epoch, newest.get((query, lineage), -1))
        present = {query: begun.of(query) or FIRST_LINEAGE for query in queries}
        return cls(
            Known({one: uid for one, (_, uid) in uids.items()}, {uid: one for uid, (_, one) in holders.items()}),
            present,
            {query: newest[query, lineage] for query, lineage in present.items() if (query, lineage) in newest},
        )
