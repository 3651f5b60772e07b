"""Control events: to whom they are addressed, and what one says. Pure.

An event is accepted once, under a number that gives all events of a job one order. What it means is decided by its
kind; see `model.control_kinds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_ext.model.offsets import Json
from spark_ext.options import UID

MAX_VALUE_BYTES = 65_536  # largest value of an event, bytes of its JSON text in UTF-8


class Scope(str, Enum):
    """What kind of thing an event is addressed to."""

    JOB = "job"
    QUERY = "query"
    SOURCE = "source"
    CHANNEL = "channel"
    SINK = "sink"

    __str__ = str.__str__


@dataclass(frozen=True, order=True)
class Target:
    """To whom an event is addressed: a query, a source and a sink may have one uid, so a target says which it is."""

    scope: Scope = Scope.JOB
    uid: str = ""  # of the query, source or sink; "" for the job
    channel: str = ""  # id of the channel; "" for anything else

    def __str__(self) -> str:
        """The form in which it is written: `job`, `query:UID`, `source:UID`, `source:UID/CHANNEL`, `sink:UID`."""
        if self.scope is Scope.JOB:
            return "job"
        if self.scope is Scope.CHANNEL:
            return f"source:{self.uid}/{self.channel}"
        return f"{self.scope}:{self.uid}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read the written form."""
        if text == "job":
            return JOB
        kind, colon, rest = text.partition(":")
        uid, slash, channel = rest.partition("/")
        if not colon or kind not in ("query", "source", "sink") or not UID.fullmatch(uid) or (slash and not channel):
            raise ValueError(
                f"{text!r} is not a target; write job, query:UID, source:UID, source:UID/CHANNEL or sink:UID"
            )
        if not slash:
            return cls(Scope(kind), uid)
        if kind != "source":
            raise ValueError(f"{text!r} is not a target: only sources have channels")
        return cls(Scope.CHANNEL, uid, channel)


JOB = Target()


def query(uid: str) -> Target:
    """A query."""
    return Target(Scope.QUERY, uid)


def source(uid: str) -> Target:
    """A source."""
    return Target(Scope.SOURCE, uid)


def channel(uid: str, name: str) -> Target:
    """A channel of a source."""
    return Target(Scope.CHANNEL, uid, name)


class Delivery(str, Enum):
    """When the queries that an event concerns obey it."""

    IMMEDIATE = "immediate"  # each one from its next epoch on
    ALIGNED = "aligned"  # all of them behind one cut of the job, which an aligned checkpoint makes

    __str__ = str.__str__


@dataclass(frozen=True)
class Event:
    """A control event that was accepted."""

    sequence: int  # its place in the one order of the job's events, from 1
    event_id: str
    kind: str
    target: Target = JOB
    value: Json = None
    delivery: Delivery = Delivery.IMMEDIATE
    lineage: int = 1  # newest lineage of the job when it was accepted
    incarnation: int = 0  # newest start of the job when it was accepted
    at_ms: int = 0  # when it was accepted, ms since 1970 UTC
    expires_ms: int | None = None  # not obeyed later than this if that has not begun, ms since 1970 UTC; None: no limit
    remote: bool = False  # whether it came over HTTP, perhaps from somebody without access to the driver's files
