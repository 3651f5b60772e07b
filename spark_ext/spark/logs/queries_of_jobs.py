"""Which queries of this process belong to a job: by their checkpoint directories, which no other query may use."""

from __future__ import annotations

from typing import Final

from spark_ext.storage import local_path

_checkpoints: Final[set[str]] = set()


def add(checkpoint: str) -> None:
    """A job is about to start a query on this checkpoint directory."""
    _checkpoints.add(_plain(checkpoint))


def has(checkpoint: str) -> bool:
    """Whether a job of this process has started a query on this checkpoint directory."""
    return _plain(checkpoint) in _checkpoints


def _plain(checkpoint: str) -> str:
    place = local_path(checkpoint)
    return checkpoint.rstrip("/") if place is None else str(place)
