"""What a query is made of, with its secrets masked, as the ledger remembers it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

VERSION: Final = 1


class Role(str, Enum):
    """What an operator is in its query."""

    __str__ = str.__str__

    SOURCE = "source"
    END = "end of input"  # the marker of a watermark
    SINK = "sink"
    STATE = "stateful operator"  # one of Spark's, which has no uid


@dataclass(frozen=True)
class OperatorDefinition:
    """A source, the marker of a watermark, or a sink."""

    uid: str
    role: Role
    format: str
    identity: Mapping[str, str] = field(default_factory=dict)  # what it reads from or writes to, by option
    options: Mapping[str, str] = field(default_factory=dict)  # all options as given, secrets masked


@dataclass(frozen=True)
class QueryDefinition:
    """A query."""

    operators: tuple[OperatorDefinition, ...]  # with a uid: sources and markers in the order of the plan, then the sink
    natives: tuple[str, ...] = ()  # descriptions of Spark's own sources, in the order of the plan
    sink_format: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    state: tuple[str, ...] | None = None  # its stateful operators, in the order of the plan; None: not known
    reads: tuple[tuple[str, str], ...] = ()  # keys of the user's configuration, each with the type of its column
    early: bool = False  # whether a start could show open windows early, whose rows a later one has to replace

    @property
    def uids(self) -> frozenset[str]:
        """The uids of its operators."""
        return frozenset(one.uid for one in self.operators)

    def of(self, role: Role) -> tuple[OperatorDefinition, ...]:
        """The operators of one role, in their order."""
        return tuple(one for one in self.operators if one.role is role)

    def to_json(self) -> dict[str, Any]:
        """The form that is stored."""
        return {
            "version": VERSION,
            "operators": [
                {
                    "uid": one.uid,
                    "role": one.role.value,
                    "format": one.format,
                    "identity": dict(one.identity),
                    "options": dict(one.options),
                }
                for one in self.operators
            ],
            "natives": list(self.natives),
            "sink_format": self.sink_format,
            "columns": [list(column) for column in self.columns],
            **({} if self.state is None else {"state": list(self.state)}),
            **({"reads": [list(one) for one in self.reads]} if self.reads else {}),
            **({"early": True} if self.early else {}),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> QueryDefinition:
        """Read a stored form; what a newer version adds is ignored."""
        return cls(
            tuple(
                OperatorDefinition(one["uid"], Role(one["role"]), one["format"], one["identity"], one["options"])
                for one in raw["operators"]
            ),
            tuple(raw["natives"]),
            raw["sink_format"],
            tuple((name, kind) for name, kind in raw["columns"]),
            tuple(raw["state"]) if "state" in raw else None,
            tuple((key, kind) for key, kind in raw.get("reads", ())),
            bool(raw.get("early")),
        )
