"""What gateways of an inbox have done, for display: from their leases and logs, and from what was decided of repeats.

All views and metrics show what `summed` says of an inbox: it is kept with each query that reads it, and goes into the
ledger with the driver's heartbeat. `spark-ext status` looks for itself, as gateways also run while no driver does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from spark_ext.errors import SparkExtError, StateError
from spark_ext.ingest.log import Lease, channels
from spark_ext.ingest.parts import Found, Part, outermost
from spark_ext.ingest.place import InboxPlace, inbox_path
from spark_ext.jobs.linking.leases import LeaseWatch
from spark_ext.views.page.graph import newest_definitions, operators
from spark_ext.views.snapshot import GATEWAY_STATES, InboxSnapshot

if TYPE_CHECKING:
    from spark_ext.ingest.log import Entry, InboxLog, LogState
    from spark_ext.views.page.facts import Facts

SOURCE: Final = "http_ingest"
ACCEPTING, UNAVAILABLE, SILENT, STOPPED, SEALED = GATEWAY_STATES
_NO_LEASE: Final = Lease(0, "", 0, "", 0, UNAVAILABLE)
_STATES: Final = {"accepting": ACCEPTING, "closed": STOPPED, "sealed": SEALED}  # by the word of a lease


class GatewayLook(NamedTuple):
    """What was found of one gateway."""

    lease: Lease | None
    log: LogState
    unread: Entry | None  # the first entry with events that no job has read, if all events are in the log
    silent: bool
    age: float  # of the lease, s

    @classmethod
    def at(cls, lease: Lease | None, log: InboxLog, *, silent: bool, age: float) -> GatewayLook:
        """Look at a gateway now."""
        found = cls(lease, log.look(), None, silent, age)
        return found._replace(unread=_unread(log, found.log)) if found.state in (STOPPED, SEALED) else found

    @property
    def state(self) -> str:
        """One of `GATEWAY_STATES`."""
        if self.log.sealed is not None:
            return SEALED
        return SILENT if self.silent else _STATES.get((self.lease or _NO_LEASE).state, UNAVAILABLE)

    def held(self, now: int) -> tuple[int, float | None]:
        """The bytes of events that no job has read, and the age of the oldest one, s; `now` is ms since 1970 UTC."""
        lease = self.lease or _NO_LEASE
        if self.state not in (STOPPED, SEALED):
            return lease.bytes, lease.oldest_unread + self.age if lease.oldest_unread else None
        if self.unread is None:
            return 0, None
        size = self.log.stored - self.unread.stored + self.unread.bytes
        return size, max(0.0, (now - self.unread.first_at / 1000) / 1000)


def _unread(log: InboxLog, state: LogState) -> Entry | None:
    entries = (log.entry(number) for number in range(log.released(), state.last + 1))
    return next((entry for entry in entries if entry is not None and entry.rows), None)


def summed(name: str, gateways: Iterable[GatewayLook], decided: Found, now: int) -> InboxSnapshot:
    """The figures of an inbox; `decided` by its planners, `now`: ms since 1970 UTC."""
    states, ages = dict.fromkeys(GATEWAY_STATES, 0), []
    found, rejected, waits = Counter[str](), Counter[str](), Counter[int]()
    for one in gateways:
        lease, (size, age) = one.lease or _NO_LEASE, one.held(now)
        # The lease of a process that was killed is older than its log, which has all that it had acknowledged.
        kept = max(lease.acknowledged, one.log.total)
        found += Counter(
            accepted=max(lease.accepted, kept),
            acknowledged=kept,
            bytes=size,
            max_bytes=lease.max_bytes if size or one.state != SEALED else 0,
        )
        rejected.update(lease.rejected)
        if one.state in (ACCEPTING, UNAVAILABLE):  # what others say of the last minute is older
            waits.update(dict(enumerate(lease.waits)))
        states[one.state] += 1
        ages += [] if age is None else [age]
    names = ("accepted", "acknowledged", "bytes", "max_bytes")
    return InboxSnapshot(
        name=name,
        gateways=states,
        **decided._asdict(),
        rejected=dict(sorted(rejected.items())),
        ack_p50_ms=_within(waits, 0.5),
        ack_p99_ms=_within(waits, 0.99),
        oldest_s=round(max(ages), 1) if ages else None,
        **{one: found[one] for one in names},
    )


def _within(waits: Counter[int], share: float) -> int | None:
    """Within which time a share of the requests was acknowledged, ms, rounded up to a power of two."""
    total, so_far = sum(waits.values()), 0
    for power in sorted(+waits):
        so_far += waits[power]
        if so_far >= share * total:
            return 1 << power
    return None


class LeftOut:
    """What was decided of the events of an inbox; reads a file when a new one is there."""

    def __init__(self, place: InboxPlace) -> None:
        self._place = place
        self._newest, self._totals = "", Found()

    def look(self) -> Found:
        """How many by now."""
        folder = self._place.decisions
        read, _ = outermost(folder.names())
        if read and read[-1].name != self._newest:
            # A file may be merged and deleted meanwhile. What is damaged is reported by the planner, which needs it.
            with suppress(OSError, StateError), folder.open_input(read[-1].name) as file:
                newest, *_ = Part.begin(file, read[-1], self._place.operator)
                self._totals, self._newest = newest.found, read[-1].name
        return self._totals


def inboxes_now(facts: Facts, storage_options: Mapping[str, str]) -> dict[str, tuple[InboxSnapshot, ...]]:
    """The inboxes that each query of a job reads, by uid, as their folders are now; one that is damaged is left out."""
    found = {}
    for query, own in operators(newest_definitions(facts.definitions, facts.jobs)).items():
        names = {one["about"] for one in own["sources"] if one["format"].lower() == SOURCE}
        looks = (_look(inbox_path(facts.directory, name), storage_options) for name in sorted(names))
        found[query] = tuple(one for one in looks if one is not None)
    return found


def _look(path: str, storage_options: Mapping[str, str]) -> InboxSnapshot | None:
    place = InboxPlace(path, "the inbox", storage_options)
    looks = []
    try:
        for gateway in channels(place.folder):
            watch = LeaseWatch(place.gateway(gateway), time.monotonic, time.time)
            watch.look()
            silent = watch.silence(draining=False, known=True) is not None
            looks.append(GatewayLook.at(watch.lease, place.log(gateway), silent=silent, age=watch.age))
        return summed(place.name, looks, LeftOut(place).look(), time.time_ns() // 1_000_000)
    except (OSError, SparkExtError):
        return None
