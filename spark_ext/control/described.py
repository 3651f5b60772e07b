"""A kind of control event as clients are shown it."""

from __future__ import annotations

from typing import Any

from spark_ext.model.control_kinds import Kind, Where


def described(kind: Kind) -> dict[str, Any]:
    """What a client has to know of a kind, as plain values."""
    return {
        "name": kind.name,
        "about": kind.about,
        "targets": sorted(str(scope) for scope in kind.scopes),
        "where": str(kind.where),
        "standing": kind.standing,
        "confirmed": kind.confirmed,
        "while_running": kind.while_running,
        "aligned": kind.standing and kind.where is Where.EPOCH,
        "example": kind.example,
        "value_schema": None if kind.value_type is None else kind.value_type.model_json_schema(),
    }
