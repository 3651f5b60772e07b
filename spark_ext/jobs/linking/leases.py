"""What the lease of a gateway says: whether it is alive, whether its clock agrees with the driver's, how full it is.

When it was written it says by the clock of the gateway's machine, which may be wrong. So it has expired when the
driver has seen no other one for a while, by a clock of its own that never goes back. How old the first one is that it
sees, only the storage knows, whose clock may be wrong as well: what that says counts once the driver has waited for
longer than a living gateway takes to write the next lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from spark_ext.ingest.log import LEASE, Lease, lease_of

if TYPE_CHECKING:
    from spark_ext.storage import Folder

SILENT_AFTER: Final = 30.0  # age of a lease at which its gateway counts as silent, s
RENEWED_WITHIN: Final = 10.0  # a living gateway writes its lease, s
CLOCKS_WITHIN: Final = 60.0  # by which the clocks of a gateway and the driver may differ, s


class LeaseWatch:
    """Looks at one gateway's lease. `clock` never goes back, `wall` is the time since 1970 UTC, both s."""

    def __init__(self, folder: Folder, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._folder, self._clock, self._wall = folder, clock, wall
        self._changed = 0.0  # when another lease was seen, by `clock`
        self._before = 0.0  # how old the first one was, by the storage's clock, s
        self._differs: list[float] = []  # how far the clock of the gateway was ahead at its newest two changes, s
        self.lease: Lease | None = None
        """The newest one; None: there was none that could be read."""

    def look(self) -> None:
        """Read the lease."""
        found = lease_of(self._folder)
        if found is None or found == self.lease:
            return
        self._changed = self._clock()
        if self.lease is None:
            written = self._folder.modified(LEASE)
            self._before = 0.0 if written is None else max(0.0, self._wall() - written)
        else:
            self._before = 0.0
            self._differs = [*self._differs[-1:], found.at / 1000 - self._wall()]
        self.lease = found

    @property
    def age(self) -> float:
        """For how long the lease has not changed, s."""
        return self._clock() - self._changed + self._before

    def silence(self, *, draining: bool, known: bool) -> str | None:
        """Why a gateway whose log is not sealed counts as silent; None: it does not. `known`: whether it did before."""
        if self.lease is None:
            return None  # it has only just begun
        if self.lease.state == "closed":
            return "it was stopped, and its log is not sealed" if draining else None
        watched = self._clock() - self._changed
        if self.age < SILENT_AFTER or (watched < RENEWED_WITHIN and not known):
            return None
        return f"its lease, of host {self.lease.host}, has not changed for {self.age:.0f} s"

    def clock_error(self) -> str | None:
        """How far the gateway's clock is off; "": not much, None: not known yet."""
        if self.lease is None or len(self._differs) < 2:
            return None
        least = min(self._differs, key=abs)  # one of the two may have been written, or seen, late
        if abs(least) <= CLOCKS_WITHIN:
            return ""
        side = "ahead of" if least > 0 else "behind"
        return f"has a clock that is about {abs(least):,.0f} s {side} the driver's; its host is {self.lease.host}"


def filling_of(lease: Lease | None, *, known: bool) -> str | None:
    """How full a gateway is: from half of what it may hold on, and once that is known down to a quarter; else None."""
    if lease is None or not lease.max_bytes or lease.bytes < lease.max_bytes / (4 if known else 2):
        return None
    share, left = lease.bytes / lease.max_bytes, lease.max_bytes - lease.bytes
    soon = f"; at the rate of that time it is full in {lease.oldest_unread * left / lease.bytes / 60:.0f} min"
    waited = f"and the oldest event has waited for {lease.oldest_unread:.0f} s"
    return f"holds {share:.0%} of its {lease.max_bytes:,} bytes, {waited}{soon if left > 0 else ''}"
