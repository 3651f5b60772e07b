"""The finished channels of each source, and those that are known to be read. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

MOST_NAMED: Final = 400
"""Channels of a source that are named; of more there are only the numbers."""


def channels(
    finished: Iterable[Mapping[str, Any]],
    offsets: Mapping[str, Any],
    counts: Callable[[Mapping[str, Any]], bool],
) -> list[dict[str, Any]]:
    """Per source: how many channels have finished, of how many that are known.

    What is known of those that are being read is what the offsets of the query's newest epoch say; a source that has
    finished has no others.

    Args:
        offsets: by query, those of the newest epoch.
        counts: whether a row belongs to its query's present lineage.
    """
    done: dict[tuple[str, str], dict[str, tuple[int, bool]]] = defaultdict(dict)
    ended: set[tuple[str, str]] = set()
    for row in finished:
        if row["kind"] == "query" or not counts(row):
            continue
        key = (row["query"], row["source"])
        if row["kind"] == "source":
            ended.add(key)
            done[key]  # it may have had no channel
        else:
            done[key][row["channel"]] = (row["epoch"], bool(row["drained"]))
    running: dict[tuple[str, str], list[str]] = {}
    for query, parts in offsets.items():
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, Mapping) and part.get("kind") == "channels" and "uid" in part:
                running[query, part["uid"]] = list(part.get("running", {}))
    found = []
    for query, source in sorted(done.keys() | running.keys()):
        own = done.get((query, source), {})
        rest = (
            [] if (query, source) in ended else [name for name in running.get((query, source), []) if name not in own]
        )
        total = len(own) + len(rest)
        named: list[list[Any]] = [[name, 2 if drained else 1, epoch] for name, (epoch, drained) in own.items()]
        named += [[name, 0, None] for name in rest]
        found.append(
            {
                "query": query,
                "source": source,
                "done": len(own),
                "running": len(rest),
                "finished": (query, source) in ended,
                "channels": named if total <= MOST_NAMED else [],
            }
        )
    return found
