"""The actions of a commit, from its file in a table's log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def actions(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kind and the content of each action, in the order of the file."""
    for line in text.splitlines():
        found = json.loads(line) if line.strip() else {}
        if not isinstance(found, dict):
            raise ValueError("a line of it is no action")
        yield from ((kind, action) for kind, action in found.items() if action is not None)
