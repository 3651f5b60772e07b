"""The configuration of an epoch: what follows from all control events up to one of them. Pure.

A planner writes the configuration, with what the epoch has to know of the events since its start, as a *stamp*: an
immutable file whose name is a hash of its content. The offset names it. So an epoch that is replayed or restored has
the configuration that it had the first time, however long events are kept.

A change that needs a restart of a query takes effect between two epochs: those before it have the old plan and
configuration, those behind it the new ones. So the query's planners obey the events before the one that needs a
restart, *hold* there, and say so. The driver then restarts the query, or releases them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_ext.errors import OffsetError
from spark_ext.model.control import JOB, Delivery, Event, Scope, Target
from spark_ext.model.control_kinds import Where, kinds
from spark_ext.model.offsets import Json

VERSION = 1  # version of a stamp's JSON form
MAX_CONFIGURATION_BYTES = 1_048_576  # largest configuration, bytes of its JSON text
Standing = Mapping[str, Mapping[str, Mapping[str, Json]]]  # what is in force: by kind, written target, and slot


@dataclass(frozen=True)
class Configuration:
    """What is in force behind an event."""

    sequence: int = 0  # the last event that counts; 0: none
    standing: Standing = field(default_factory=dict)
    aligned: Mapping[str, Json] = field(default_factory=dict)  # not in force yet, by sequence: kind, target and value
    renames: int = 0  # lineage of the last rename of a query whose targets have been moved; 0: no rename

    def after(self, events: Iterable[Event]) -> Configuration:
        """The configuration behind further events, which are in their order; those up to `sequence` are left out."""
        found = self
        for event in events:
            if event.sequence > found.sequence:
                found = found._after(event)
        return found

    def _after(self, event: Event) -> Configuration:
        kind = kinds().get(event.kind)
        moved = replace(self, sequence=event.sequence)
        if event.kind == "release":
            if event.value.get("void"):
                return moved
            held = self.aligned.get(str(event.value["sequence"]))
            left = {name: one for name, one in self.aligned.items() if name != str(event.value["sequence"])}
            moved = replace(moved, aligned=left)
            if held is None or event.value.get("withdrawn"):
                return moved
            return moved._with(held["kind"], held["target"], held["value"])
        if event.kind == "renamed":
            value = event.value
            return moved.with_rename(value["old"], value["new"], value["lineage"])
        if kind is None or not kind.standing:
            return moved
        if event.delivery is Delivery.ALIGNED:
            held = {"kind": event.kind, "target": str(event.target), "value": event.value}
            return replace(moved, aligned={**self.aligned, str(event.sequence): held})
        return moved._with(event.kind, str(event.target), event.value)

    def _with(self, name: str, target: str, value: Json) -> Configuration:
        kind = kinds()[name]
        if kind.ends:
            return replace(self, standing=_put(self.standing, kind.ends, target, "", None, unset=True))
        slot = str(value[kind.slot]) if kind.slot else ""
        unset = (kind.lifts and value is None) or (isinstance(value, dict) and bool(value.get("unset")))
        return replace(self, standing=_put(self.standing, name, target, slot, value, unset=unset))

    def with_rename(self, old: str, new: str, lineage: int) -> Configuration:
        """The configuration once a query has another uid: what stood for the old one stands for the new one."""
        return self if lineage <= self.renames else replace(self.readdressed(old, new), renames=lineage)

    def readdressed(self, old: str, new: str) -> Configuration:
        """What stands for a query stands for another uid instead, in place of what stood for that."""
        was, now = str(Target(Scope.QUERY, old)), str(Target(Scope.QUERY, new))
        standing = {
            kind: {**{one: slots for one, slots in targets.items() if one != was}, now: targets[was]}
            if was in targets
            else targets
            for kind, targets in self.standing.items()
        }
        aligned = {
            number: {**held, "target": now} if held["target"] == was else held for number, held in self.aligned.items()
        }
        return replace(self, standing=standing, aligned=aligned)

    def of(self, kind: str, target: Target, slot: str = "") -> Json:
        """The value of a standing kind in force for exactly this target, if any; of one without a value see `has`."""
        return self.standing.get(kind, {}).get(str(target), {}).get(slot)

    def has(self, kind: str, target: Target, slot: str = "") -> bool:
        """Whether a standing kind is in force for exactly this target."""
        return slot in self.standing.get(kind, {}).get(str(target), {})

    def user(self, query: str = "") -> dict[str, Json]:
        """The user's configuration of a query: its own keys, over those of the job."""
        found: dict[str, Json] = {}
        for target in (JOB, Target(Scope.QUERY, query)) if query else (JOB,):
            slots = self.standing.get("set_config", {}).get(str(target), {})
            found.update({key: stored.get("value") for key, stored in slots.items()})
        return found

    def pauses(self, query: str, sources: Iterable[str]) -> bool:
        """Whether a query reads nothing: it, the job, or each of its channel sources is paused."""
        paused = [self.has("pause", Target(Scope.SOURCE, uid)) for uid in sources]
        whole = any(self.has("pause", target) for target in (JOB, Target(Scope.QUERY, query)))
        return bool(paused) and (whole or all(paused))

    def pauses_within(self, query: str, sources: Iterable[str]) -> list[str]:
        """The targets of all pauses that keep something of a query from being read, as they are written."""
        of_sources = {str(Target(Scope.SOURCE, uid)) for uid in sources}
        mine = {str(JOB), str(Target(Scope.QUERY, query)), *of_sources} if of_sources else set()
        return sorted(target for target in self.standing.get("pause", {}) if target.partition("/")[0] in mine)

    def to_json(self) -> dict[str, Json]:
        """The JSON form."""
        found: dict[str, Json] = {"sequence": self.sequence, "standing": self.standing}
        if self.aligned:
            found["aligned"] = self.aligned
        if self.renames:
            found["renames"] = self.renames
        return found

    @classmethod
    def from_json(cls, raw: Mapping[str, Json]) -> Configuration:
        """Read the JSON form."""
        return cls(raw["sequence"], raw["standing"], raw.get("aligned", {}), raw.get("renames", 0))


def _put(standing: Standing, kind: str, target: str, slot: str, value: Json, *, unset: bool) -> Standing:
    targets = dict(standing.get(kind, {}))
    slots = dict(targets.get(target, {}))
    if unset:
        slots.pop(slot, None)
    else:
        slots[slot] = value
    targets[target] = slots
    if not slots:
        del targets[target]
    found = {**standing, kind: targets}
    if not targets:
        del found[kind]
    return found


@dataclass(frozen=True)
class Stamp:
    """What a source's planner records when an epoch obeys further events."""

    configuration: Configuration
    since: int = 0  # the last event that the source had obeyed before
    broadcasts: tuple[Mapping[str, Json], ...] = ()  # the user's events after `since`, as dicts
    outcomes: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """What became of events after `since` about which there is something to say, by event id: `status` (`applied`,
    `rejected`, `expired`), `reason` and `result`."""
    query: str = ""  # uid that the query had then, to which standing values are addressed; "": unknown

    def seen_by(self, query: str) -> Configuration:
        """The configuration as the query sees it, which may have another uid than then."""
        if not query or not self.query or query == self.query:
            return self.configuration
        return self.configuration.readdressed(self.query, query)

    def text(self) -> str:
        """The content of its file: equal stamps have equal texts."""
        raw: dict[str, Any] = {
            "version": VERSION,
            "configuration": self.configuration.to_json(),
            "since": self.since,
            "broadcasts": list(self.broadcasts),
            "outcomes": dict(self.outcomes),
            "query": self.query,
        }
        return json.dumps(raw, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @property
    def name(self) -> str:
        """The name by which an offset refers to it."""
        return name_of(self.text())

    @classmethod
    def parse(cls, text: str, who: str) -> Stamp:
        """Read the content of a file."""
        raw = json.loads(text)
        if raw.get("version") != VERSION:
            raise OffsetError(
                f"an epoch's configuration has version {raw.get('version')!r}; this release reads version {VERSION}",
                operator=who,
                kept="the checkpoint and all output are unchanged; nothing was read",
                do="run the release of spark-ext that wrote this checkpoint, or a newer one",
            )
        return cls(
            Configuration.from_json(raw["configuration"]),
            raw["since"],
            tuple(raw["broadcasts"]),
            raw["outcomes"],
            raw["query"],
        )


def name_of(text: str) -> str:
    """The name of a stamp with this text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def concerns(event: Event, query: str, source: str) -> bool:
    """Whether a source's next epoch has to obey an event: it is addressed to the source, its query or the job."""
    kind = kinds().get(event.kind)
    if kind is None or kind.where is Where.DRIVER:
        return False
    target = event.target
    if target.scope is Scope.JOB:
        return True
    if target.scope is Scope.QUERY:
        return target.uid == query
    return target.scope in (Scope.SOURCE, Scope.CHANNEL) and target.uid == source


ALL: Final = "*"  # among the keys of a query: its function reads all keys
SETTINGS: Final = "spark.sql."  # keys that begin with this are settings of the session in which a query runs


def is_read(keys: Collection[str], key: str) -> bool:
    """Whether the value of a key makes a difference for a query's plan, whose function has read `keys`."""
    return bool(keys) and (ALL in keys or key in keys or (SETTINGS in keys and key.startswith(SETTINGS)))


def changed_key(event: Event, aligned: Callable[[int], Json]) -> tuple[Target, str] | None:
    """Whose configuration an event puts into force, and which key of it; None if it changes none.

    `aligned` gives the aligned event with a sequence, as `kind`, `target` and `value`, or None.
    """
    kind, target, value = event.kind, event.target, event.value
    if kind == "release":
        if value.get("void") or value.get("withdrawn"):
            return None
        held = aligned(int(value["sequence"]))
        if held is None:
            return None
        kind, target, value = held["kind"], Target.parse(held["target"]), held["value"]
    elif event.delivery is Delivery.ALIGNED:
        return None
    return (target, str(value["key"])) if kind == "set_config" else None


def holds_at(event: Event, uid: str, keys: Collection[str], aligned: Callable[[int], Json]) -> bool:
    """Whether a query may need a restart at an event: its sources plan nothing until it has restarted."""
    if event.kind == "restart":
        return event.target in (JOB, Target(Scope.QUERY, uid))
    changed = changed_key(event, aligned) if keys else None
    return changed is not None and changed[0] in (JOB, Target(Scope.QUERY, uid)) and is_read(keys, changed[1])
