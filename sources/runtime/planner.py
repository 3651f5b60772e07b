"""Planning of a source's epochs, in its planner process on the driver: which channels go how far.

An epoch's cost depends on the channels that are running: others are looked at once, when the planner starts.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from spark_ext.control import current, levels
from spark_ext.exchange.consumers import Consumer, Fill
from spark_ext.exchange.kinds import parts
from spark_ext.model.barriers import NO_BARRIER, Checkpoints
from spark_ext.model.configuration import Configuration
from spark_ext.model.offsets import Finished, Json, Position, Running, SourceOffset
from spark_ext.model.pressure import FlightLimit, Hold
from spark_ext.sources.aligned import AlignedSource
from spark_ext.sources.contract import Channel, ChannelSource
from spark_ext.sources.runtime.directives import (
    DirectiveBook,
    Directives,
    interval_ms,
    is_paused,
    paused_channels,
    planned_sources,
)
from spark_ext.sources.runtime.rates import Budget, Pace, Rates
from spark_ext.sources.runtime.stages import Stages, Targets
from spark_ext.sources.runtime.view import LedgerView as LedgerView
from spark_ext.sources.runtime.view import NoLedger as NoLedger
from spark_ext.spark.session.hold_notes import HoldNote
from spark_ext.spark.session.registry import PARALLELISM, Registration, folder, note_changed, note_plan

HOLD_S: Final = 0.05  # between two looks whether an AvailableNow run that holds for a restart may go on, s
MOST_ASKED: Final = 1_000  # channels whose lag is asked for: a bound of an epoch's cost


class Planner:
    """Turns the start of an epoch into its end; outside a job without a registration.

    The clock is in s, never goes back, and is the same in all processes of this machine.
    """

    def __init__(
        self,
        source: ChannelSource,
        registration: Registration | None,
        view: LedgerView,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._stages = Stages(source)
        self.registration = registration
        self._view = view
        self._clock = clock
        self._pending: deque[Channel] = deque()
        self._taken: list[tuple[Channel, int]] = []
        self._seen: set[str] = set()
        self._opened = False
        self._available_now = False
        self._targets: dict[str, Position] = {}
        self._kept = Targets(registration)
        self._discovered_at = 0.0
        self._epoch_at: float | None = None
        self._served = ""
        self._throttle = Throttle(registration.writes if registration else ())
        self._hold: Hold | None = None  # for what it waited when it was asked last
        self._hold_note = _hold_note(source, registration, clock)
        self._changes = _changes(source, registration)
        self._progress = _progress(source, registration, clock)
        self._directives = DirectiveBook(source, registration, view)
        self._pace = Pace(registration.target_ms if registration else 0, clock)
        self._rates = Rates(source, clock)
        self._holds = False
        self._draining = False  # a drain is in force, and the source has not ended yet
        self._rests = False  # because of a pause or a full exchange
        self.rows: int | None = None  # of the epoch that was planned last, at most; None: unknown
        self._planned_from: SourceOffset | None = None
        # A run until now leaves what is paused to a later one; the job says then that it has not read everything.
        self._waits_for_pauses = registration is None or not registration.until_now

    @property
    def readers(self) -> int:
        """How many tasks read an epoch."""
        return self._source.options.readers or int(os.environ.get(PARALLELISM, "2"))

    @property
    def rationed_s(self) -> float:
        """How long an AvailableNow run has to wait until it may read on, s; 0: it does not wait."""
        if not self._available_now:
            return 0.0
        return HOLD_S if self._holds or self._rests else self._rates.wait_s

    @property
    def waiting(self) -> int:
        """How many channels have been discovered and not started."""
        return len(self._pending)

    def lag(self, at: SourceOffset) -> int | None:
        """Rows that are in no epoch up to an offset; None if the source does not know."""
        if at.ended:
            return 0
        if isinstance(self._source, AlignedSource):
            # Before its first epoch none of its channels is in an offset.
            started = {name: state.at for name, state in at.running.items()}
            return self._source.lag_together(started or {one.id: one.begin for one in self._pending})
        if len(at.running) + len(self._pending) > MOST_ASKED:
            return None
        total = 0
        channels = [(Channel(name, None, state.data), state.at) for name, state in at.running.items()]
        for channel, position in (*channels, *((one, one.begin) for one in self._pending)):
            rows = self._source.lag(channel, position)
            if rows is None:
                return None
            total += rows
        # What later stages hold is not known before they begin.
        return total if self._stages.last else None

    def survey(self, at: SourceOffset) -> tuple[int, int | None]:
        """How many channels have not begun behind an offset, and how many rows are to be read; plans nothing."""
        self._open(at)
        return len(self._pending), self.lag(at)

    def prepare_available_now(self) -> None:
        """From now on, plan only what is available now."""
        self._available_now = True
        self._stages.end_with_now(self._kept)
        if not self._source.bounded:
            self._targets = self._kept.of(None, lambda: self._latest(self._found()))

    def next(self, start: SourceOffset) -> SourceOffset:
        """The end of the epoch that begins at `start`; `start` itself when there is nothing to do."""
        self._hold, self.rows = None, 0
        end = self._next(start)
        if self._hold_note is not None:
            self._hold_note.tell(self._hold)
        return end

    def _next(self, start: SourceOffset) -> SourceOffset:
        self.enter(start)
        self._open(start)
        if self.registration is not None and self.registration.hold:
            return start
        self._pace.asked()
        known, own = self._view.barriers()
        directives = self._directives.next(start)
        if self.registration is not None:
            current.planned(
                self.registration.job, self.registration.query, lambda: directives.configuration, directives.stamp
            )
            levels.follow()
        self._holds, self._rests = directives.hold, False
        if directives.hold:
            return start
        if start.ended:
            # It obeys no event any more, but for those that ask for a further epoch.
            return (
                self._stamped(start, replace(start, final=directives.final), directives)
                if directives.final > start.final
                else start
            )
        self._put_back(start)
        if directives.drain and not isinstance(self._source, AlignedSource):
            # Channels that are sent elsewhere by an event that came before the drain end there.
            if self._source.drained({*start.running, *(channel.id for channel in self._pending)}):
                return self._stamped(start, replace(_jumped(start, directives), ended=True, drained=True), directives)
            self._holds = True  # what is to be read before the end counts for an AvailableNow run as well
            if not self._draining:
                self._draining = True
                self._discover()
        if self._stages.entered(start.stage):
            self._discover(begins=start.stage)
        waits = start.running or self._pending or self._paused(start, directives)
        following = None if waits else self._stages.after(start.stage)
        if following is not None:
            # An epoch of its own, without rows: the next stage begins from what is in the log by then.
            return self._stamped(start, replace(start, stage=following), directives)
        begin = _jumped(start, directives)
        end = self._data(begin, known, directives)
        if end is not begin:
            self._epoch_at = self._clock()
        if own > end.barrier and not end.ended:
            # Also where no data may be read now: nothing holds a barrier up.
            end = replace(end, barrier=own)
        if end.barrier > start.barrier:
            # An event that takes effect behind this barrier was accepted before the checkpoint was triggered.
            self._view.refresh_events()
        if end is start and directives.stamp is None:
            return start
        return self._stamped(start, self._stages.remembered(start, end), directives)

    def enter(self, offset: SourceOffset) -> None:
        """Let the source see, in the calls that follow, what was in force in the epoch that ends at an offset."""
        if self.registration is not None:
            job, query = self.registration.job, self.registration.query
            current.planned(job, query, lambda: self._directives.configuration(offset))

    def configuration(self, offset: SourceOffset) -> Configuration:
        """What was in force in the epoch that ends at an offset."""
        return self._directives.configuration(offset)

    def _data(self, start: SourceOffset, known: Checkpoints, directives: Directives) -> SourceOffset:
        """The end of an epoch that reads what the limits allow; `start` when it reads nothing."""
        self._rates.follow(directives.configuration)
        paused = self._paused(start, directives)
        self._hold = None if paused else self._throttle.look()
        if paused or self._hold is not None:
            self._rests = not paused or self._waits_for_pauses
            self._rates.rest()
            return start
        if not self._due(directives.configuration) or self._waits(start, known):
            return start
        self._discover_more(start)
        if self._planned_from is not None and self._planned_from == start:
            self._rates.undo()
        self._rates.begin(self._interval_ms(directives.configuration) / 1000)
        if isinstance(self._source, AlignedSource):
            end = self._advance_together(self._source, start)
        else:
            end = self._advance(start, directives)
        self._rates.end()
        self._planned_from = start if end is not start else None
        return end

    def _paused(self, start: SourceOffset, directives: Directives) -> bool:
        return is_paused(directives.configuration, self.registration.query if self.registration else "", start.uid)

    def _waits(self, start: SourceOffset, known: Checkpoints) -> bool:
        """Whether a source has received a barrier that others of its query have not, and has to stay where it is."""
        # They are looked up in Spark's log, so the epoch in which all carry it is in the log before any reads on.
        if not isinstance(self._source, AlignedSource) or self.registration is None:
            return False
        if not known.any_pending(NO_BARRIER, start.barrier):
            return False
        return any(
            not other.ended and known.any_pending(other.barrier, start.barrier)
            for other in planned_sources(self.registration.checkpoint).values()
        )

    def _stamped(self, start: SourceOffset, end: SourceOffset, directives: Directives) -> SourceOffset:
        lineage = self.registration.lineage if self.registration else 0
        if directives.stamp is not None:
            # Written before the offset that names it is returned.
            name = self._directives.write(directives.stamp)
            end = replace(end, control=directives.configuration.sequence, stamp=name)
        # A channel that finishes in this very epoch has to be in the epoch's end, or its rows would not be read.
        end = end.confirm(min(self._view.confirmed(), start.sequence))
        return replace(end, lineage=lineage)

    def _due(self, configuration: Configuration) -> bool:
        """Whether the interval lets an epoch start: at whole multiples of it, so that a query's sources agree."""
        interval = self._interval_ms(configuration)
        if not interval or self._epoch_at is None or self._available_now:
            return True
        return int(self._clock() * 1000) // interval > int(self._epoch_at * 1000) // interval

    def _interval_ms(self, configuration: Configuration) -> int:
        given = self.registration
        return 0 if given is None else interval_ms(configuration, given.query, given.interval_ms)

    def _open(self, start: SourceOffset) -> None:
        if self._opened or start.ended:
            return
        finished = set(self._view.finished_channels(start.confirmed))
        finished.update(finish.channel for finish in start.finished)
        known = [Channel(name, state.begin, state.data) for name, state in start.running.items()]
        known += [Channel(finish.channel, finish.begin, finish.data) for finish in start.finished]
        self._stages.restore(start.stage)
        self._source.resume(known, frozenset(finished))
        self._seen = finished | start.running.keys()
        if self._changes is not None:
            self._changes.read(self._view.finished_data(start.confirmed))
            self._changes.read({finish.channel: finish.data for finish in start.finished})
        self._opened = True
        # The stage of the run was unknown until the offset was seen.
        self._discover(begins=start.stage)

    def _latest(self, channels: Iterable[Channel]) -> dict[str, Position]:
        """The end of what the channels hold now; None of one that is read to its end."""
        return {channel.id: self._source.latest(channel) for channel in channels}

    def _discover(self, begins: Json = None) -> None:
        """Queue new channels; where a stage begins, an AvailableNow run takes what is available at that moment."""
        self._discovered_at = self._clock()
        channels = list(self._found())
        if self._changes is not None:
            self._changes.compare(channels)
        # A channel that appeared after an AvailableNow run had begun waits for the next run.
        closed = self._available_now and not self._source.bounded and not self._draining
        if closed and begins is not None:
            self._targets = self._kept.of(begins, lambda: self._latest(channels))
        for channel in channels:
            if channel.id not in self._seen and not (closed and channel.id not in self._targets):
                self._seen.add(channel.id)
                self._pending.append(channel)

    def _found(self) -> Iterator[Channel]:
        self._progress.begin()
        for number, channel in enumerate(self._source.discover(), 1):
            yield channel
            self._progress.at("{:,} {} found", number, self._source.channels_name)

    def _put_back(self, start: SourceOffset) -> None:
        """Queue the channels that the last plan had started again if that plan did not become an epoch."""
        for channel, sequence in reversed(self._taken):
            if channel.id not in start.running and not 0 < sequence <= start.sequence:
                self._pending.appendleft(channel)
        self._taken.clear()

    def _target(self, channel: Channel) -> Position:
        """Where an AvailableNow run stops reading a channel; None: not before its end."""
        if not self._available_now or self._source.bounded or self._draining:
            return None
        if channel.id not in self._targets:
            # It is in the offset and is no longer discovered.
            self._targets[channel.id] = self._source.latest(channel)
        return self._targets[channel.id]

    def _discover_more(self, start: SourceOffset) -> None:
        waited_ms = (self._clock() - self._discovered_at) * 1000
        if (
            not self._source.bounded
            and (self._draining or not self._available_now)
            and waited_ms >= self._source.options.discovery_interval
        ):
            self._discover()

    def _advance(self, start: SourceOffset, directives: Directives) -> SourceOffset:
        options = self._source.options
        budget = Budget(self._pace.limit(options.max_rows_per_epoch), options.max_bytes_per_epoch, self._rates)
        running = {
            name: Running(state.at, state.data, jumped=name in directives.jumps)
            for name, state in start.running.items()
        }
        finished = list(start.finished)
        sequence = start.sequence
        at_once = self.readers if self._source.channels_end else len(running) + len(self._pending)
        paused = paused_channels(directives.configuration, start.uid)
        still = running.keys() & (paused | directives.jumps.keys())
        aside: list[Channel] = []
        turn = self._turn([name for name in running if name not in still])
        unserved = len(running) - len(still)
        moved = False
        waiting, named = len(self._pending), self._source.channels_name
        self._progress.begin()
        while not budget.spent:
            name = turn.popleft() if turn else None
            free = max(0, at_once - len(running))
            fresh = name is None
            if name is None:
                if not free or not self._pending:
                    if turn:
                        continue
                    break
                channel = self._pending.popleft()
                state = Running(channel.begin, channel.data, channel.begin, new=True)
                among = unserved + min(free, len(self._pending) + 1)
            else:
                among = unserved + min(free, len(self._pending))
                unserved -= 1
                state = running[name]
                channel = Channel(name, None, state.data)
            upto = self._target(channel)
            if upto is not None and state.at == upto and not fresh:
                # A new one gets into the offset even so: the next run must not choose where it begins again.
                continue
            # Those that have been started are not served while they are paused.
            rests = channel.id in paused
            allowed = None if rests else budget.allowed(channel, state.at, among, upto)
            if allowed is None:
                if fresh and self._source.channels_end:
                    aside.append(channel)
                    # A limit of the source holds for all that wait behind it, too; one of the channel does not.
                    at_once = at_once if rests or self._rates.limits(channel.id) else len(running)
                elif fresh:
                    # Left out, it would be discovered again by the next planner, which decides anew where it begins.
                    running[channel.id] = state
                    self._taken.append((channel, 0))
                    moved = True
                continue
            self._progress.at("{:,} {}, {:,} planned", waiting, named, waiting - len(self._pending) - fresh)
            step = self._source.advance(channel, state.at, allowed.limit)
            if step.end == state.at and not step.finished and not fresh:
                continue
            moved = True
            self._served = channel.id
            budget.spend(allowed, step)
            if step.finished:
                sequence += 1
                if self._changes is not None:
                    self._changes.read({channel.id: state.data})
                running.pop(channel.id, None)
                finished.append(Finished(sequence, channel.id, step.end, state.data, state.begin, state.new))
            else:
                running[channel.id] = replace(state, at=step.end)
            if fresh:
                self._taken.append((channel, sequence if step.finished else 0))
        self._rests = (
            self._waits_for_pauses
            and not moved
            and any(name in paused for name in (*running, *(channel.id for channel in aside)))
        )
        self._pending.extendleft(reversed(aside))
        self._pace.planned(budget.planned)
        self.rows = budget.rows
        ended = self._source.bounded and self._stages.last and not running and not self._pending
        if not moved and not ended:
            return start
        return replace(start, running=running, finished=tuple(finished), sequence=sequence, ended=ended)

    def _advance_together(self, source: AlignedSource, start: SourceOffset) -> SourceOffset:
        options = self._source.options
        channels = {name: Running(state.at, state.data) for name, state in start.running.items()}
        channels |= {
            channel.id: Running(channel.begin, channel.data, channel.begin, new=True) for channel in self._pending
        }
        budget = Budget(self._pace.limit(options.max_rows_per_epoch), options.max_bytes_per_epoch, self._rates)
        allowed = budget.allowed(Channel(""), None, 1)
        if allowed is None:
            return start
        passes = self.registration is not None and self.registration.passes
        known = start.watermark if passes else None
        step = source.advance_together({name: state.at for name, state in channels.items()}, allowed.limit, known)
        if step is None:
            return start
        budget.spend(allowed, step)
        self._pace.planned(budget.planned)
        self.rows = budget.rows
        self._taken += [(channel, start.sequence + 1 if step.finished else 0) for channel in self._pending]
        self._pending.clear()
        moved = {name: replace(state, at=step.ends[name]) for name, state in channels.items()}
        start = replace(start, barrier=max(start.barrier, step.barrier), watermark=max(start.watermark, step.watermark))
        if not step.finished:
            return replace(start, running=moved)
        ends = enumerate(moved.items(), start.sequence + 1)
        finished = tuple(
            Finished(sequence, name, state.at, state.data, state.begin, state.new) for sequence, (name, state) in ends
        )
        return replace(
            start,
            running={},
            finished=(*start.finished, *finished),
            sequence=start.sequence + len(finished),
            ended=True,
        )

    def _turn(self, names: list[str]) -> deque[str | None]:
        """The order of service, behind the channel that was served last, so that a small budget reaches all."""
        # None stands for a channel that waits to be started.
        cut = names.index(self._served) + 1 if self._served in names else 0
        return deque([*names[cut:], None, *names[:cut]])


def _jumped(start: SourceOffset, directives: Directives) -> SourceOffset:
    """The start of an epoch, with the channels that are sent to another position; else `start` itself."""
    if not directives.jumps:
        return start
    running = {
        name: Running(directives.jumps.get(name, state.at), state.data, jumped=name in directives.jumps)
        for name, state in start.running.items()
    }
    return replace(start, running=running)


def _hold_note(source: ChannelSource, registration: Registration | None, clock: Callable[[], float]) -> HoldNote | None:
    place = folder()
    if registration is None or not registration.writes or place is None:
        return None
    return HoldNote(place, source.options.uid, registration.start, clock)


def _changes(source: ChannelSource, registration: Registration | None) -> Changes | None:
    place = folder()
    if registration is None or not source.names_changes or place is None:
        return None
    return Changes(lambda changed: note_changed(place, source.options.uid, registration.start, changed))


def _progress(source: ChannelSource, registration: Registration | None, clock: Callable[[], float]) -> Progress:
    place, start = folder(), 0 if registration is None else registration.start
    if registration is None or place is None:
        return Progress(lambda _: None, clock)
    return Progress(lambda what: note_plan(place, source.options.uid, start, what), clock)


class Progress:
    """Tells how far a plan has come that takes long, once a second."""

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._tell, self._clock = tell, clock
        self._told_at = 0.0

    def begin(self) -> None:
        """A plan begins."""
        self._told_at = self._clock()

    def at(self, form: str, *figures: int | str) -> None:
        """It has come so far."""
        now = self._clock()
        if now - self._told_at >= 1.0:
            self._told_at = now
            self._tell(form.format(*figures))


class Changes:
    """Channels that have changed since they were read, by their data."""

    def __init__(self, tell: Callable[[Sequence[str]], None]) -> None:
        self._read: dict[str, Json] = {}
        self._told = 0
        self._tell = tell

    def read(self, channels: Mapping[str, Json]) -> None:
        """Channels have finished, with these data."""
        self._read.update((name, data) for name, data in channels.items() if data is not None)

    def compare(self, discovered: Iterable[Channel]) -> None:
        """Tell which of them have changed, if there are more of these than before."""
        pairs = ((one.id, one.data, self._read.get(one.id)) for one in discovered)
        changed = [name for name, now, then in pairs if None not in (now, then) and now != then]
        if len(changed) > self._told:
            self._told = len(changed)
            self._tell(changed)


class Throttle:
    """Looks, by files alone, whether an exchange that the query writes is full.

    An exchange holds `max_in_flight` and one epoch at most: an epoch is planned when there is less. Consumers that are
    built later, or have left the job, are not waited for.
    """

    def __init__(self, writes: Sequence[Any]) -> None:
        self._since = 0.0
        self._writes = writes
        self._fills: list[tuple[str, Fill, FlightLimit]] | None = None

    def look(self) -> Hold | None:
        """For what the query has to wait; None: for nothing."""
        if not self._writes:
            return None
        if self._fills is None:
            self._fills = self._limited()
        for name, fill, limit in self._fills or ():
            level = fill.level()
            if limit.reached(level):
                self._since = self._since or time.time()
                return Hold(name, level.slowest, limit.filled(level), limit, self._since)
        self._since = 0.0
        return None

    def _limited(self) -> list[tuple[str, Fill, FlightLimit]] | None:
        """The exchanges that have a limit; None as long as one of them is not there yet."""
        found = []
        for kind, path, options, consumers in self._writes:
            master = parts(kind, path, f"exchange {path}", options).master
            about = master.describe()
            if about is None:
                return None
            limit = FlightLimit.of(about.max_in_flight)
            if limit is not None and consumers:
                waited_for = [Consumer(*one) for one in consumers]
                found.append((about.name, Fill(master.log, waited_for, about.partitions), limit))
        return found
