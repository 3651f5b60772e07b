"""What has changed from one document to the next, and how a reader of them applies it. Pure.

A patch has the members that are new or have another value, and the paths of those that are gone. Down to `DEPTH`
objects are compared member by member; the list of queries counts as an object by uid. So a job of 500 queries of which
one has committed an epoch sends the row and the series of that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DEPTH: Final = 3
"""How many levels of objects are compared member by member."""


def keyed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its queries by uid, as patches see it."""
    return {**document, "queries": {query["uid"]: query for query in document["queries"]}}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The patch from one document to another one, both as `keyed` returns them.

    Returns:
        `set`, a list of [path, value], and `gone`, a list of paths. A path is a list of names.
    """
    changes: list[list[Any]] = []
    gone: list[list[str]] = []
    _compare(before, after, [], changes, gone)
    return {"set": changes, "gone": gone}


def apply(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The document behind a patch. The page's script does the same."""
    found: dict[str, Any] = _copied(document)
    for path in patch["gone"]:
        _parent(found, path).pop(path[-1], None)
    for path, value in patch["set"]:
        _parent(found, path)[path[-1]] = value
    return found


def _compare(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    path: list[str],
    changes: list[list[Any]],
    gone: list[list[str]],
) -> None:
    for name, value in after.items():
        old = before.get(name, _MISSING)
        if old is value or (old is not _MISSING and old == value):
            continue
        if len(path) + 1 < DEPTH and isinstance(old, Mapping) and isinstance(value, Mapping):
            _compare(old, value, [*path, name], changes, gone)
        else:
            changes.append([[*path, name], value])
    gone += [[*path, name] for name in before if name not in after]


_MISSING: Final = object()


def _copied(value: Any, depth: int = DEPTH) -> Any:
    if depth == 0 or not isinstance(value, Mapping):
        return value
    return {name: _copied(part, depth - 1) for name, part in value.items()}


def _parent(found: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for name in path[:-1]:
        found = found[name]
    return found
