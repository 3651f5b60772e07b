"""Incidents as the page shows them: a line of each in the document, and all of one when it is opened. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from spark_ext.views.incidents import query_of, texts_of
from spark_ext.views.timeline import plain

MOST: Final = 1_000  # incidents in a document: the newest ones
LINE: Final = 300  # characters of what happened that the list shows


def lines(incidents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The newest of merged incidents, newest first, without evidence."""
    found = []
    for row in reversed(incidents[-MOST:]):
        found.append(
            {
                "id": row["incident_id"],
                "at": round(row["at"].timestamp() * 1000),
                "type": row["type"],
                "operator": row["operator"],
                "query": query_of(row),
                "what": texts_of(row)[:LINE],
                "action": row["action"],
                "labels": _labels(row),
                "severity": row["severity"],
                "parent": row.get("parent") or "",
                "incarnation": row["incarnation"],
                "count": row.get("count") or 1,
                "status": row.get("state") or "",
            }
        )
    return found


def detail(row: Mapping[str, Any], changes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All that is known of one."""
    evidence = row["evidence"]
    stack = evidence.get("stack") if isinstance(evidence, Mapping) else None
    rest = {name: value for name, value in evidence.items() if name != "stack"} if stack else evidence
    return {
        "id": row["incident_id"],
        "what": row["what"],
        "first": row["first_what"],
        "stack": str(stack) if stack else "",
        "evidence": plain(rest),
        "changes": [plain(dict(one)) for one in _by_incident(changes).get(row["incident_id"], [])],
    }


def _by_incident(changes: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in sorted(changes, key=lambda row: row["at"]):
        found[row["incident_id"]].append(row)
    return found


def _labels(row: Mapping[str, Any]) -> dict[str, str]:
    labels = row["labels"]
    return {str(name): str(value) for name, value in labels.items()} if isinstance(labels, Mapping) else {}
