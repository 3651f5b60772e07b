"""The names under which queries that others have started are recorded. Pure.

A known id of Spark's is the same query, whatever its name is now. A new query is recorded under its name, or its id
without one. Another checkpoint under a known name is a new lineage, as after a reset. Queries that share a name at the
same time get different names here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from spark_ext.ledger.identity import FIRST_LINEAGE, lineages
from spark_ext.ledger.schema import EpochRow, JobRow

if TYPE_CHECKING:
    from spark_ext.ledger import Ledger

_OTHER: Final = re.compile(r"[^A-Za-z0-9._~-]")
_HASHED: Final = re.compile(r"~[0-9a-f]{8}\Z")
LONGEST: Final = 80  # characters of a name that are kept


@dataclass(frozen=True)
class Known:
    """The queries that were seen so far."""

    uids: Mapping[str, str] = field(default_factory=dict)  # names by Spark's id of the query
    holders: Mapping[str, str] = field(default_factory=dict)  # by that name, the id that had it last

    def having(self, query_id: str, uid: str) -> Known:
        """With one more."""
        return Known({**self.uids, query_id: uid}, {**self.holders, uid: query_id})


def plain(name: str) -> str:
    """A query's name as a uid: letters, digits and `. _ ~ -`; one that is changed ends in a part of its hash.

    A name that looks changed gets a hash of its own, or it would have the uid of the name that was changed to it.
    """
    found = _OTHER.sub("_", name)
    if not found[:1].isalnum():
        found = f"q{found}"
    if found == name and len(found) <= LONGEST and not _HASHED.search(name):
        return found
    return f"{found[:LONGEST]}~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def assigned(query_id: str, name: str, known: Known, live: Mapping[str, str]) -> tuple[str, bool]:
    """Under which uid a query that was started with a name, or "", is recorded, and whether a new lineage begins.

    That is so if the uid was another checkpoint's before.
    """
    for number, uid in enumerate(_candidates(query_id, name, known)):
        held, holder = live.get(uid), known.holders.get(uid)
        if held not in (None, query_id):
            continue
        # What only tells two apart never takes the history of a third one over.
        if number > 0 and holder not in (None, query_id):
            continue
        return uid, holder not in (None, query_id)
    raise AssertionError("the candidates have no end")


def _candidates(query_id: str, name: str, known: Known) -> Iterator[str]:
    first = known.uids.get(query_id) or (plain(name) if name else plain(query_id))
    yield first
    if name:
        yield f"{plain(name)}~{query_id[:8]}"
    yield f"{plain(name) if name else 'query'}~{query_id}"
    for number in count(2):
        yield f"query~{query_id}~{number}"


@dataclass
class Memory:
    """What is known of queries."""

    known: Known = field(default_factory=Known)
    lineages: dict[str, int] = field(default_factory=dict)  # by uid; others are in the first
    newest: dict[str, int] = field(default_factory=dict)  # by uid, the newest epoch that was recorded in its lineage

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
