"""What differs between two definitions of a query: the one that the ledger remembers, and the given one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role

TUNING: Final = frozenset(
    {"uid", "max_rows_per_epoch", "max_bytes_per_epoch", "readers", "discovery_interval", "rows_per_second"}
)
"""Options of sources that decide how, not what is read."""


class ChangeKind(Enum):
    """What kind of difference it is."""

    ADDED = "added"  # a source, or the marker of a watermark, that was not there
    REMOVED = "removed"  # a source, or the marker of a watermark, that is no longer there
    ORDER = "order"  # the same sources in another order: Spark knows them by their places
    SPARKS = "Spark's sources"  # Spark's own sources are others, or in another order
    IDENTITY = "identity"  # what an operator reads from or writes to
    OPTION = "option"
    COLUMN = "column"
    STATE = "state"  # a stateful operator: what is in the state was computed otherwise


@dataclass(frozen=True)
class Change:
    """One difference."""

    kind: ChangeKind
    role: Role
    uid: str  # the operator, or the query for what belongs to none
    name: str = ""  # the option or column
    before: str | None = None
    after: str | None = None

    @property
    def key(self) -> str:
        """Under which a user accepts it: `uid.option`."""
        return f"{self.uid}.{self.name}"

    @property
    def acceptable(self) -> bool:
        """Whether the query can continue if the user says so."""
        # Positions in a source of one format mean nothing to another.
        moved = self.kind is ChangeKind.IDENTITY and not (self.role is Role.SOURCE and self.name == "format")
        return moved or self.kind is ChangeKind.STATE

    @property
    def breaking(self) -> bool:
        """Whether a query that has begun cannot continue as if nothing had happened."""
        return self.kind not in (ChangeKind.OPTION, ChangeKind.COLUMN)

    def __str__(self) -> str:
        who = f"{self.role} '{self.uid}'"
        if self.kind is ChangeKind.ADDED:
            return f"{who} was not in this query before"
        if self.kind is ChangeKind.REMOVED:
            return f"{who} is no longer in this query"
        if self.kind is ChangeKind.ORDER:
            return f"its sources were in the order {self.before}, and are in the order {self.after}"
        if self.kind is ChangeKind.SPARKS:
            return f"Spark's own sources were {self.before or 'none'}, and are {self.after or 'none'}"
        if self.kind is ChangeKind.STATE:
            return f"the state was made by {self.before or 'no operator'}, and the query has {self.after or 'none'} now"
        if self.kind is ChangeKind.COLUMN:
            if self.before is None:
                return f"column '{self.name}' is new"
            if self.after is None:
                return f"column '{self.name}' is gone"
            return f"column '{self.name}' was {self.before}, and is {self.after}"
        return f"option '{self.name}' of {who} was {_shown(self.before)}, and is {_shown(self.after)}"


def compare(query: str, remembered: QueryDefinition, given: QueryDefinition) -> tuple[Change, ...]:
    """All differences, those of operators first."""
    return tuple(_changes(query, remembered, given))


def _changes(query: str, before: QueryDefinition, after: QueryDefinition) -> Iterator[Change]:
    for role in (Role.SOURCE, Role.END):
        yield from _of_sources(query, role, before.of(role), after.of(role))
    if before.natives != after.natives:
        yield Change(ChangeKind.SPARKS, Role.SOURCE, query, "", ", ".join(before.natives), ", ".join(after.natives))
    if before.state is not None and after.state is not None and before.state != after.state:
        yield from _of_state(query, before.state, after.state)
    yield from _of_sink(query, before, after)
    yield from _of_columns(query, dict(before.columns), dict(after.columns))


def _of_sources(
    query: str, role: Role, before: tuple[OperatorDefinition, ...], after: tuple[OperatorDefinition, ...]
) -> Iterator[Change]:
    old, new = {one.uid: one for one in before}, {one.uid: one for one in after}
    for uid in new.keys() - old.keys():
        yield Change(ChangeKind.ADDED, role, uid)
    for uid in old.keys() - new.keys():
        yield Change(ChangeKind.REMOVED, role, uid)
    if old.keys() == new.keys() and list(old) != list(new):
        yield Change(ChangeKind.ORDER, role, query, "", ", ".join(old), ", ".join(new))
    for uid in old.keys() & new.keys():
        yield from _of_operator(old[uid], new[uid])


def _of_state(query: str, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[Change]:
    if len(before) != len(after):
        before, after = ("; ".join(before),), ("; ".join(after),)
    for old, new in zip(before, after, strict=True):
        if old != new:
            yield Change(ChangeKind.STATE, Role.STATE, query, "state", old, new)


def _of_sink(query: str, before: QueryDefinition, after: QueryDefinition) -> Iterator[Change]:
    old, new = before.of(Role.SINK), after.of(Role.SINK)
    if old and new and old[0].uid == new[0].uid:
        yield from _of_operator(old[0], new[0])
    elif old and new:
        yield Change(ChangeKind.IDENTITY, Role.SINK, old[0].uid, "uid", old[0].uid, new[0].uid)
    elif before.sink_format != after.sink_format:
        yield Change(ChangeKind.IDENTITY, Role.SINK, query, "format", before.sink_format, after.sink_format)


def _of_operator(before: OperatorDefinition, after: OperatorDefinition) -> Iterator[Change]:
    role, uid = after.role, after.uid
    if before.format != after.format:
        yield Change(ChangeKind.IDENTITY, role, uid, "format", before.format, after.format)
        return
    stages = [{name.partition(".")[0] for name in one.identity} for one in (before, after)]
    for name in sorted(before.identity.keys() | after.identity.keys()):
        old, new = before.identity.get(name), after.identity.get(name)
        if old is None and name.startswith("schema.") and after.options.get("schema_evolution") == "add_columns":
            yield Change(ChangeKind.OPTION, role, uid, name, old, new)
        # A source with stages knows by itself which of them it has entered: one may be added at the end.
        elif old != new and ("." not in name or all(name.partition(".")[0] in one for one in stages)):
            yield Change(ChangeKind.IDENTITY, role, uid, name, old, new)
    if role is Role.SOURCE:
        for name in sorted((before.options.keys() | after.options.keys()) - TUNING - before.identity.keys()):
            old, new = before.options.get(name), after.options.get(name)
            if old != new and name not in after.identity:
                yield Change(ChangeKind.OPTION, role, uid, name, old, new)


def _of_columns(query: str, before: dict[str, str], after: dict[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Change(ChangeKind.COLUMN, Role.SINK, query, name, before.get(name), after.get(name))


def _shown(value: str | None) -> str:
    return "not set" if value is None else f"'{value}'"
