"""What the control events call for in a source's next epoch, and the stamp that records it.

A planner obeys events in their one order, each in one epoch: it folds them into the configuration, writes that down
as a stamp, and returns an offset that names it. What has to be decided once for all sources of a query (whether an
event had expired, where an aligned one takes effect) is decided from Spark's log and by files that are created once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from spark_ext.control import stamps
from spark_ext.errors import SparkExtError, TransientError
from spark_ext.model.configuration import Configuration, Stamp, concerns, holds_at
from spark_ext.model.control import JOB, Event, Scope, query, source
from spark_ext.model.control_kinds import kinds
from spark_ext.model.offsets import SourceOffset
from spark_ext.model.query_offsets import source_offsets
from spark_ext.sources.aligned import AlignedSource
from spark_ext.sources.contract import Channel
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.model.offsets import Json, Position
    from spark_ext.sources.contract import ChannelSource
    from spark_ext.sources.runtime.view import LedgerView
    from spark_ext.spark.session.registry import Registration


MOST_BROADCASTS: Final = 1_000  # events of the user's in one stamp; what comes after them waits for the next epoch
MOST_BYTES: Final = 2_097_152
NONE: Final = Configuration()

WAIT: Final = "wait"
STAND: Final = "stand"


@dataclass(frozen=True)
class Directives:
    """What a source does in its next epoch."""

    configuration: Configuration
    stamp: Stamp | None = None  # what records it; None: there is nothing new
    drain: bool = False
    final: int = 0  # how many final epochs were requested
    jumps: Mapping[str, Position] = field(default_factory=dict)  # where channels continue that were sent elsewhere
    hold: bool = False  # its query is about to be restarted


class DirectiveBook:
    """The events of one source, as its planner obeys them; none outside a job, without a registration."""

    def __init__(
        self,
        source: ChannelSource,
        registration: Registration | None,
        view: LedgerView,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._registration = registration
        self._view = view
        self._wall_clock = wall_clock
        self._drain = registration.drain if registration else False
        self._begun = False
        self._final = 0
        self._looked: tuple[SourceOffset, int, Directives] | None = None
        self._finished: tuple[int, frozenset[str]] = (0, frozenset())
        self._in_vain: tuple[int, int] | None = None  # the last event obeyed, and the last one looked at in vain
        self._released: set[int] = set()  # events at which the source was let go
        self._freed = False  # whether it has just been let go

    def configuration(self, start: SourceOffset) -> Configuration:
        """What was in force in the epoch that ended at an offset."""
        if self._registration is None or not start.stamp:
            return NONE if not start.control else Configuration(start.control)
        return stamps.read(self._registration.checkpoint, start.stamp).seen_by(self._registration.query)

    def next(self, start: SourceOffset) -> Directives:
        """What the next epoch has to do."""
        before = self.configuration(start)
        if self._registration is None:
            return Directives(before)
        if not self._begun:
            self._begun = True
            self._remember_drain(start)
        later = self._view.events(start.control)
        seen = (start.control, later[-1].sequence if later else 0)
        if self._is_in_vain(start, later):
            self._in_vain = seen
            return Directives(before, drain=self._drain, final=self._final)
        found, hold = self._obeyed(start, later)
        if self._freed:
            # What the driver has added before it let the source continue belongs into the same epoch.
            self._freed = False
            self._view.refresh_events()
            later = self._view.events(start.control)
            found, hold = self._obeyed(start, later)
        if hold == STAND:
            return Directives(before, drain=self._drain, final=self._final, hold=True)
        if not found and isinstance(hold, Event):
            stamps.hold(self._registration.checkpoint, self._registration.start, hold.sequence, start.uid)
            return Directives(before, drain=self._drain, final=self._final, hold=True)
        if not found:
            # Spark asks an idle source every 10 ms: events for others are looked at once.
            waits = any(event.kind == "align" for event in later)
            self._in_vain = None if waits else seen
            return Directives(before, drain=self._drain, final=self._final)
        last = found[-1][0].sequence
        if self._looked is not None and self._looked[:2] == (start, last):
            return self._looked[2]
        directives = self._made(start, before, found)
        self._looked = (start, last, directives)
        return directives

    def _is_in_vain(self, start: SourceOffset, later: Sequence[Event]) -> bool:
        """Whether the events that have come since the last look in vain do not concern this source, either."""
        if self._in_vain is None or self._in_vain[0] != start.control:
            return False
        fresh = takewhile(lambda event: event.sequence > self._in_vain[1], reversed(later))  # type: ignore[index]
        return not any(event.kind in ("restart", "align") or self._mine(start, event) for event in fresh)

    def write(self, stamp: Stamp) -> str:
        """Write a stamp down before the offset that names it is returned."""
        return stamps.write(self._known.checkpoint, stamp.text())

    @property
    def _known(self) -> Registration:
        """Of a source in a job, which alone has events."""
        assert self._registration is not None
        return self._registration

    def _obeyed(
        self, start: SourceOffset, events: Sequence[Event]
    ) -> tuple[list[tuple[Event, bool]], Event | str | None]:
        """The events that the next epoch obeys, up to the last one for this source, and whether each had expired."""
        # Also the one before which the source stands still for a restart, or STAND: it stands still behind a barrier
        # until its outcome is known.
        out: list[tuple[Event, bool]] = []
        upto = count = size = 0
        for event in events:
            if event.kind == "align":
                aligning = self._aligning(start, event, events)
                if aligning == STAND:
                    return [], STAND
                if aligning == WAIT:
                    break
            if self._holds(start, event, events):
                return out[:upto], event
            out.append((event, self._expired(event)))
            if not self._mine(start, event) or self._over(event):
                continue
            if event.kind == "broadcast":
                count += 1
                size += len(str(event.value))
                if count > MOST_BROADCASTS or size > MOST_BYTES:
                    out.pop()
                    break
            upto = len(out)
        return out[:upto], None

    def _holds(self, start: SourceOffset, event: Event, events: Sequence[Event]) -> bool:
        """Whether the query may need a restart at an event, and the driver has not said that it needs none."""
        mine = self._known

        def aligned(sequence: int) -> Json:
            known = self.configuration(start).aligned.get(str(sequence))
            found = next((one for one in events if one.sequence == sequence), None)
            if known is None and found is not None:
                return {"kind": found.kind, "target": str(found.target), "value": found.value}
            return known

        if event.sequence <= mine.passed or not holds_at(event, mine.query, mine.rebuild, aligned):
            return False
        if not stamps.is_released(mine.checkpoint, mine.start, event.sequence):
            return True
        self._freed = self._freed or event.sequence not in self._released
        self._released.add(event.sequence)
        return False

    def _over(self, event: Event) -> bool:
        """Whether an event that is obeyed once was meant for an earlier history, or came before this query."""
        kind = kinds().get(event.kind)
        if kind is not None and kind.standing:
            return False
        return event.lineage < self._known.lineage or event.incarnation < self._known.begun

    def _expired(self, event: Event) -> bool:
        if event.expires_ms is None:
            return False
        late = self._wall_clock() * 1000 >= event.expires_ms
        # All sources of the query have to see the same, whenever they look.
        question = f"expiry-{self._known.lineage}-{event.sequence}"
        return stamps.decide(self._known.checkpoint, question, "late" if late else "in time") == "late"

    def _aligning(self, start: SourceOffset, event: Event, events: Sequence[Event]) -> str:
        """Where a source is beside a barrier behind which an aligned event is to take effect in all queries."""
        # The driver adds a release once the barrier has passed all of them, or has been given up. Until then no query
        # plans anything behind it, so that all obey the event behind this one barrier, or none does. WAIT: the barrier
        # is ahead, and with it all later events; STAND: the query has passed it; "": it is over.
        mine = self._known
        barrier = int(event.value["checkpoint"])
        over = any(one.kind == "release" and one.value["checkpoint"] == barrier for one in events)
        if over or event.incarnation < mine.incarnation:
            return ""
        if start.barrier < barrier:
            return WAIT
        others = planned_sources(mine.checkpoint).values()
        return STAND if all(other.ended or other.barrier >= barrier for other in others) else WAIT

    def _made(self, start: SourceOffset, before: Configuration, found: Sequence[tuple[Event, bool]]) -> Directives:
        obeyed: list[Event] = []
        outcomes: dict[str, dict[str, Json]] = {}
        jumps: dict[str, Position] = {}
        broadcasts: list[dict[str, Json]] = []
        for event, late in found:
            outcome = self._outcome(start, event, late, jumps)
            if outcome:
                outcomes[event.event_id] = outcome
            if late or outcome.get("status") == "rejected":
                # What was in force stays in force.
                continue
            obeyed.append(event)
            if event.kind == "broadcast" and not outcome and self._mine(start, event):
                broadcasts.append(_broadcast(event))
        # Those that are left out were obeyed, too: as if they did not exist.
        after = replace(before.after(obeyed), sequence=found[-1][0].sequence)
        stamp = Stamp(after, start.control, tuple(broadcasts), outcomes, self._known.query)
        return Directives(after, stamp, self._drain, self._final, jumps)

    def _remember_drain(self, start: SourceOffset) -> None:
        """A source may need several epochs to end, and its query may be restarted between them."""
        earlier = self._view.events(min(self._known.passed, start.control))
        drains = (event for event in earlier if event.kind == "drain" and event.sequence <= start.control)
        self._drain = self._drain or any(self._mine(start, event) and not self._over(event) for event in drains)

    def _mine(self, start: SourceOffset, event: Event) -> bool:
        return concerns(event, self._known.query, start.uid)

    def _outcome(self, start: SourceOffset, event: Event, late: bool, jumps: dict[str, Position]) -> dict[str, Json]:
        """Obey an event of anybody; what there is to say about it, empty if nothing or if it is not for this source."""
        if not self._mine(start, event):
            return {}
        if late:
            return {"status": "expired", "reason": "its time was over before it was obeyed"}
        if self._over(event):
            return {"status": "failed", "reason": "it was meant for an earlier start or history"}
        if event.kind == "drain":
            self._drain = True
        elif event.kind == "final_epoch":
            self._final = max(self._final, int(event.value or 0))
        elif event.kind == "seek":
            return self._jump(start, event, jumps)
        wrong = self._wrong(start, event)
        return _rejected(wrong) if wrong else {}

    def _wrong(self, start: SourceOffset, event: Event) -> str:
        """Why a standing event cannot be obeyed; "" if it can."""
        if event.target.scope is Scope.CHANNEL:
            if isinstance(self._source, AlignedSource):
                return "the channels of this source advance together: address it to the source"
            if wrong := self._unknown(start, event.target.channel):
                return wrong
        value = event.value if isinstance(event.value, dict) else {}
        if event.kind == "rate_limit" and value.get("older_than") is not None and not self._source.knows_when_written:
            return "the source does not know when its rows were written, so a limit cannot depend on it"
        return ""

    def _unknown(self, start: SourceOffset, name: str) -> str:
        """Why an event for a channel has no effect; "" if it may have one."""
        if any(finish.channel == name for finish in start.finished):
            return "the channel has finished"
        if name not in start.running and self._view_finished(start, name):
            return "the channel has finished"
        return ""

    def _view_finished(self, start: SourceOffset, name: str) -> bool:
        if self._finished[0] != start.confirmed:
            self._finished = start.confirmed, frozenset(self._view.finished_channels(start.confirmed))
        return name in self._finished[1]

    def _jump(self, start: SourceOffset, event: Event, jumps: dict[str, Position]) -> dict[str, Any]:
        name = event.target.channel
        wrong = self._unknown(start, name)
        if not wrong and name not in start.running:
            wrong = "the source has no such channel, or has not started it yet"
        if wrong:
            return _rejected(wrong)
        state = start.running[name]
        at = jumps.get(name, state.at)
        try:
            to = self._source.seek(Channel(name, None, state.data), at, event.value["position"])
        except TransientError:
            raise
        except SparkExtError as problem:
            return _rejected(problem.what)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
            # A mistake in the source must not stop the query again and again.
            return _rejected(f"the source cannot take this position: {type(problem).__name__}: {problem}")
        jumps[name] = to
        return {"status": "applied", "result": {"channel": name, "from": at, "to": to, **_distance(at, to)}}


def _rejected(reason: str) -> dict[str, Json]:
    return {"status": "rejected", "reason": reason}


def _distance(at: Position, to: Position) -> dict[str, Json]:
    if isinstance(at, int) and isinstance(to, int) and not isinstance(at, bool):
        return {"skipped": to - at} if to >= at else {"read_again": at - to}
    return {}


def _broadcast(event: Event) -> dict[str, Json]:
    return {
        "sequence": event.sequence,
        "event_id": event.event_id,
        "type": event.value["type"],
        "value": event.value.get("value"),
        "target": str(event.target),
        "at_ms": event.at_ms,
    }


def is_paused(configuration: Configuration, of_query: str, uid: str) -> bool:
    """Whether a source reads nothing: it, its query or the job is paused."""
    return any(configuration.has("pause", target) for target in (JOB, query(of_query), source(uid)))


def paused_channels(configuration: Configuration, uid: str) -> frozenset[str]:
    """The paused channels of a source."""
    mine = f"{source(uid)}/"
    paused = configuration.standing.get("pause", {})
    return frozenset(target.removeprefix(mine) for target in paused if target.startswith(mine))


def interval_ms(configuration: Configuration, of_query: str, given: int) -> int:
    """The minimum time between two data epochs of a query, ms."""
    for target in (query(of_query), JOB):
        found = configuration.of("trigger_interval", target)
        if found is not None:
            return int(found["interval"])
    return given


def planned_sources(checkpoint: str) -> dict[str, SourceOffset]:
    """The newest planned offsets of a query's channel sources, by uid; empty before the first epoch."""
    log = SparkLog(checkpoint)
    newest = log.newest_offsets()
    logged = None if newest is None else log.offsets(newest)
    return {} if logged is None else source_offsets(logged)
