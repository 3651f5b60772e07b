"""When the producer of an exchange has to wait for its consumers, and what is said of it. Pure.

A consumer that is slower than its producer holds it back in many short pieces as well as in a long one. So the strain
counts up while the producer is held and down while it is not: held for less than half of the time, it never becomes an
incident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_ext.model.stalls import USUAL, usual
from spark_ext.options import byte_count

DEFAULT: Final = "1 GiB"
"""More than a producer at full speed writes while a consumer is restarted, and little beside a driver's disk."""

SHOWN_AFTER: Final = 2.0  # how long a producer is held before it is said that it stands still, s
STRAINED: Final = 30.0  # the least strain that is an incident, s


@dataclass(frozen=True)
class FlightLimit:
    """How much of an exchange its slowest consumer may not have committed."""

    amount: int
    rows: bool  # whether that is a number of rows, or else of bytes

    @classmethod
    def of(cls, given: object) -> FlightLimit | None:
        """From `100_000` (rows), `"1 GiB"`, or None, also as text; a ValueError if it is none of these."""
        text = str(given).strip()
        if text.lower() == "none":
            return None
        try:
            rows = text.replace("_", "").isdigit()
            found = cls(int(text) if rows else byte_count(text), rows)
        except ValueError:
            found = None
        if found is None or found.amount <= 0:
            raise ValueError(f"{given!r} is neither a number of rows, such as 100000, nor a size such as '1 GiB'")
        return found

    def reached(self, level: Level) -> bool:
        """Whether the producer has to wait."""
        return self.filled(level) >= self.amount

    def filled(self, level: Level) -> int:
        """How much of it is used, in its unit."""
        return level.rows if self.rows else level.bytes


def in_flight(given: object) -> int | str | None:
    """A limit as it is stored; see `FlightLimit.of`."""
    limit = FlightLimit.of(given)
    return None if limit is None else limit.amount if limit.rows else str(given).strip()


@dataclass(frozen=True)
class Level:
    """What an exchange holds that its slowest consumer has not committed."""

    rows: int = 0
    bytes: int = 0
    stored: int = 0  # bytes on disk, of all entries that are not released
    slowest: str = ""  # the query of that consumer; "" without consumers


@dataclass(frozen=True)
class Hold:
    """A producer that waits for a consumer."""

    exchange: str
    by: str  # the query that reads it, and is the slowest
    filled: int
    limit: FlightLimit
    since: float  # when it began to wait, s since 1970 UTC, by its planner's clock; tells two holds apart

    def same(self, other: Hold) -> bool:
        """Whether these are one hold, at two moments."""
        return (self.exchange, self.by, self.since) == (other.exchange, other.by, other.since)

    @property
    def what(self) -> str:
        """For the reason of a state, and for the incident."""
        unit = "rows" if self.limit.rows else "bytes"
        return (
            f"held back by query '{self.by}': {self.filled:,} of {self.limit.amount:,} {unit} in exchange "
            f"'{self.exchange}'"
        )

    def to_json(self) -> dict[str, Any]:
        """The form in which a planner notes it."""
        limit = [self.limit.amount, self.limit.rows]
        return {"exchange": self.exchange, "by": self.by, "filled": self.filled, "limit": limit, "since": self.since}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Hold:
        """Read a note; a KeyError, TypeError or ValueError if it is none."""
        amount, rows = raw["limit"]
        limit = FlightLimit(int(amount), bool(rows))
        return cls(str(raw["exchange"]), str(raw["by"]), int(raw["filled"]), limit, float(raw["since"]))


@dataclass(frozen=True)
class Pressure:
    """How a query was held back so far, in this run."""

    hold: Hold | None = None  # now
    seconds: float = 0.0  # in all
    stands: float = 0.0  # in this hold, s
    strain: float = 0.0  # see the module, s
    at: float | None = None  # when that was so, s, monotonic

    def after(self, hold: Hold | None, now: float) -> Pressure:
        """After a further look at the planners' notes."""
        passed = 0.0 if self.at is None else now - self.at
        if hold is None or self.hold is None:
            relieved = max(0.0, self.strain - passed)
            return Pressure(hold, self.seconds, 0.0, relieved, now)
        stands = self.stands + passed if hold.same(self.hold) else 0.0
        return replace(
            self, hold=hold, seconds=self.seconds + passed, stands=stands, strain=self.strain + passed, at=now
        )

    @property
    def standing(self) -> Hold | None:
        """What holds a producer that stands still."""
        return self.hold if self.stands >= SHOWN_AFTER else None


def strained_after(recent_ms: Sequence[int], fixed: float | None) -> float:
    """The strain that is an incident, s, by durations of recent epochs of the consumer, ms, or as the user fixed it."""
    if fixed is not None:
        return fixed
    return max(STRAINED, USUAL * usual(recent_ms)) if recent_ms else 2 * STRAINED
