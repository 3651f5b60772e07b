"""The graph of a job's queries in the ledger: which query writes and reads which exchange. Pure.

The ledger has no gates (`after`): a query that waits for the end of another one stands beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

READS = "exchange"  # format of a source that reads an exchange
WRITES = "exchange_2pc"  # format of a sink that writes one


def newest_definitions(
    definitions: Iterable[Mapping[str, Any]], jobs: Iterable[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """What each query is made of now; without those that were renamed or removed."""
    found: dict[str, Mapping[str, Any]] = {}
    begun: dict[str, int] = {}
    for row in sorted(definitions, key=lambda row: (row["incarnation"], row["at"])):
        found[row["query"]] = row["definition"] or {}
        begun[row["query"]] = row["incarnation"]
    for query, incarnation in gone(jobs).items():
        if begun.get(query, incarnation + 1) <= incarnation:  # else another query has the uid since
            found.pop(query, None)
    return found


def gone(jobs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Queries that were renamed or removed, with the last incarnation in which that was done."""
    found: dict[str, int] = {}
    for row in jobs:
        query = {"removed": row["query"], "renamed": row["renamed_from"]}.get(row["event"])
        if query:
            found[query] = max(row["incarnation"], found.get(query, 0))
    return found


def operators(definitions: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[dict[str, str]]]]:
    """Sources and sinks of each query: uid, format, and what they read or write."""
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for query, definition in definitions.items():
        own: dict[str, list[dict[str, str]]] = {"sources": [], "sinks": []}
        for one in definition.get("operators", ()):
            kind = {"source": "sources", "sink": "sinks"}.get(one["role"])
            if kind is not None:
                about = one.get("identity", {}).get("path", "")
                own[kind].append({"uid": one["uid"], "format": one["format"], "about": str(about)})
        own["sources"] += [{"uid": "", "format": "Spark", "about": str(text)} for text in definition.get("natives", ())]
        if not own["sinks"] and definition.get("sink_format"):
            own["sinks"].append({"uid": "", "format": str(definition["sink_format"]), "about": ""})
        found[query] = own
    return found


def edges(made_of: Mapping[str, Mapping[str, list[dict[str, str]]]]) -> list[dict[str, str]]:
    """From the query that writes an exchange to each one that reads it; an exchange that nobody writes has no edge."""
    writers = {one["about"]: query for query, own in made_of.items() for one in own["sinks"] if one["format"] == WRITES}
    found: dict[tuple[str, str, str], None] = {}
    for query, own in made_of.items():
        for one in own["sources"]:
            if one["format"] == READS and one["about"] in writers:
                found[writers[one["about"]], query, one["about"]] = None
    return [{"from": writer, "to": reader, "exchange": exchange} for writer, reader, exchange in found]


def exchanges(
    made_of: Mapping[str, Mapping[str, list[dict[str, str]]]], rows: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The exchanges of a job: who writes and reads each, and whether it is sealed, as its writer has finished."""
    sealed: dict[str, int] = {}
    cut: dict[str, int] = {}
    names: dict[str, None] = {}
    for row in rows:
        names[row["exchange"]] = None
        marks = {"sealed": sealed, "cut": cut}.get(row["event"])
        if marks is not None:
            marks[row["exchange"]] = max(row["lineage"], marks.get(row["exchange"], 0))
    writers: dict[str, list[str]] = defaultdict(list)
    readers: dict[str, list[str]] = defaultdict(list)
    for query, own in made_of.items():
        for kind, form, found in (("sinks", WRITES, writers), ("sources", READS, readers)):
            for one in own[kind]:
                if one["format"] == form:
                    names[one["about"]] = None
                    found[one["about"]].append(query)
    return [
        {
            "name": name,
            "writers": writers[name],
            "readers": sorted(set(readers[name])),
            # A restore cuts an exchange, and its writer writes on, in the new lineage.
            "sealed": sealed.get(name, 0) >= cut.get(name, 1),
        }
        for name in sorted(names)
    ]
