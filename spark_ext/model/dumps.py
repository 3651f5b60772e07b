"""Dumps of a job: for which incidents they are taken, what is in their text, and which are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_ext.failures.labels import FailureType
from spark_ext.incidents.types import Incident
from spark_ext.model.stacks import Thread

LONGEST: Final = 8 << 20  # characters of a text of stacks that are kept
CUT: Final = "\n... cut off here\n"


@dataclass(frozen=True)
class Section:
    """The stacks of one process."""

    title: str
    text: str  # the stacks; or, in words, why they could not be taken


@dataclass(frozen=True)
class KeptDump:
    """A dump that is there."""

    name: str  # of its folder: the incident's id
    at: float  # when it was taken, s since 1970; 0 if nobody knows
    size: int  # of all its files, bytes


def is_dumped(incident: Incident) -> bool:
    """Whether an incident is one for which a dump says more: a query that has stalled, or that lacks a resource."""
    if incident.type == "stall":
        return True
    kind = incident.labels.get("base", incident.labels.get("type"))
    return incident.type == "failure" and kind == FailureType.RESOURCE.value


def seen(evidence: object) -> tuple[Section, ...]:
    """The stacks that an incident has in its evidence: what they are of may be gone by the time of the dump."""
    found = evidence.get("stacks") if isinstance(evidence, Mapping) else None
    if not isinstance(found, Mapping) or not found:
        return ()
    threads = ("\n".join([f'"{name}"', *(f"    at {place}" for place in places)]) for name, places in found.items())
    return (Section("seen when the incident was noticed", "\n\n".join(threads)),)


def excess(kept: Iterable[KeptDump], most: int, size: int) -> tuple[str, ...]:
    """The dumps that have to go, oldest first, so that at most `most` with `size` bytes together are left."""
    left = sorted(kept, key=lambda one: (one.at, one.name))
    gone = []
    while left and (len(left) > most or sum(one.size for one in left) > size):
        gone.append(left.pop(0).name)
    return tuple(gone)


def document(head: str, sections: Sequence[Section]) -> str:
    """The text of a dump."""
    parts = [head.rstrip() + "\n"]
    left = LONGEST - len(parts[0])
    for number, section in enumerate(sections):
        share = max(0, left // (len(sections) - number))
        text = f"\n== {section.title} ==\n\n{section.text.rstrip()}\n"
        text = text if len(text) <= share else text[: max(0, share - len(CUT))] + CUT
        left -= len(text)
        parts.append(text)
    return "".join(parts)


def stacks(threads: Iterable[Thread]) -> str:
    """Stacks as text, innermost frame first."""
    return "\n".join(
        "\n".join([f'"{thread.name}"', *(f"    at {frame.place}" for frame in thread.frames)]) + "\n"
        for thread in threads
    )
