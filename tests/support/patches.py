"""Patches of the page's document, applied as its script does."""

from collections.abc import Mapping
from copy import deepcopy
from functools import reduce
from operator import getitem
from typing import Any


def patched(document: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    found = deepcopy(dict(document))
    for path in patch["gone"]:
        reduce(getitem, path[:-1], found).pop(path[-1], None)
    for path, value in patch["set"]:
        reduce(getitem, path[:-1], found)[path[-1]] = value
    return found
