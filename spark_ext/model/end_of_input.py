"""End of input of one watermark: when its marker row is due, and when the state behind it has been flushed.

At the end of bounded input nothing advances the watermark any more, so the last windows would never be emitted and
their state would stay forever. `spark_ext.with_watermark` therefore adds a small source, `end_of_input`, to the sources
under each watermark. Once all of them have ended and the epoch of their last rows is committed, it takes two steps:

1. `marker` grows by one: an epoch with one row, far in the future, that only the watermark operator sees;
2. `flushed` becomes true: an epoch without a row of its own, which runs under the watermark that the marker has set
   and therefore emits and frees all state.

The decision is based only on Spark's own offset and commit logs, never on a table, so that it is made in the first
planning after the commit; otherwise a query under `availableNow` would end before it. Each planner process takes both
steps again, because a restarted query no longer knows the watermark of each single source.

For the same reason a planner process puts back how far event time had come below its watermark: once, by a row with
that time, behind the first epoch of its query. Otherwise a source without new rows would hold back the others.

Over sources that read exchanges the watermark is the least of those of their producers, if each has one for the column.
Rows do not move it then: Spark is given a delay of `NEVER`, and the marker emits rows that are as far in the future
behind the watermark that the entries read so far have carried. Where the query writes an exchange in its turn, an epoch
is added when Spark's watermark has moved without another one, so that the next entry carries it.

Pure: no clock, no file, no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_ext.errors import ConfigurationError
from spark_ext.model.offsets import VERSION, Json, LoggedOffsets, OffsetKind, check, kind_of

FORMAT: Final = "end_of_input"
UNKNOWN: Final = "?"  # for a source without a uid in `watches`: its end is not detected, the marker never emitted
TIME: Final = "end_of_time"  # column of the source: the marker's event time
ZERO: Final = "zero"  # column of the source: a zero that Spark's optimizer cannot recognize as a constant
EVENT_TIME: Final = "event_time"  # observed metric: greatest event time of an epoch, microseconds since 1970 UTC

END_MICROS: Final = 6_248_568_000_000_000_000
"""The marker's event time, microseconds since 1970 UTC: in the year 199979.

Far beyond any date that occurs on purpose or by mistake (9999-12-31, or milliseconds read as seconds, which gives years
around 57,000), so that such rows are emitted at the end too; and 95,000 years before a 64-bit timestamp overflows, so
that Spark can add gaps, delays and intervals to it.
"""

DELAY: Final = "spark.watermarkDelayMs"  # in the metadata of a column with a watermark: its delay, ms
PRODUCERS_DELAY: Final = "spark_ext.watermarkDelayMs"  # the same, in a column of what another query has written

NEVER: Final = "36500000 days"
"""A delay by which no row moves a watermark: some 100,000 years."""

NEVER_MICROS: Final = 36_500_000 * 86_400_000_000
NEVER_YEARS: Final = "+10"
"""How a time that is so far behind one before the year 10000 begins in ISO 8601."""

STAYS: Final = "stays"
"""Option of the source: by how much, ms, the watermark stays behind that of the producer of each watched source."""

MAX_UID: Final = 128

_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True)
class EndOffset:
    """Offset of an `end_of_input` source."""

    uid: str
    marker: int = 0  # number of markers emitted, over all runs
    flushed: bool = False  # the epoch after the last marker is planned; once it is committed, the state is empty
    carried: int = 0  # how often an earlier event time was put back, over all runs
    at: int = 0  # the last one that was put back, or taken over from producers, microseconds since 1970 UTC
    passed: int = 0  # how often an epoch was added so that the watermark passes on, over all runs

    def to_json(self) -> dict[str, Json]:
        """The JSON form."""
        return {
            "version": VERSION,
            "kind": OffsetKind.END_OF_INPUT.value,
            "uid": self.uid,
            "marker": self.marker,
            "flushed": self.flushed,
            **({"carried": self.carried, "at": self.at} if self.carried else {}),
            **({"passed": self.passed} if self.passed else {}),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Json], uid: str | None = None) -> EndOffset:
        """Read an offset of this version or the former one."""
        check(raw, OffsetKind.END_OF_INPUT, uid, f"end of input '{raw.get('uid') if uid is None else uid}'")
        return cls(
            *(raw[name] for name in ("uid", "marker", "flushed")),
            *(raw.get(name, 0) for name in ("carried", "at", "passed")),
        )


def is_end_of_input_offset(raw: Json) -> bool:
    """Whether a line of Spark's offset log was written by an `end_of_input` source."""
    return kind_of(raw) is OffsetKind.END_OF_INPUT


def marker_uid(watches: Sequence[str]) -> str:
    """The uid of a watermark's marker, derived from the uids under it; a source is under only one watermark."""
    first = min(watches)
    uid = f"{first}~end"
    if len(uid) <= MAX_UID:
        return uid
    import hashlib

    digest = hashlib.sha256(first.encode()).hexdigest()[:8]
    return f"{first[: MAX_UID - len(digest) - 5]}~{digest}~end"


def all_ended(committed: LoggedOffsets, watches: Sequence[str]) -> bool:
    """Whether all watched sources have ended in a committed epoch; False if one is unknown or none is watched."""
    ended = {raw["uid"] for raw in committed.sources if kind_of(raw) is OffsetKind.CHANNELS and raw.get("ended")}
    return bool(watches) and ended.issuperset(watches)


def next_offset(start: EndOffset, watches: Sequence[str], committed: LoggedOffsets | None, before: int) -> EndOffset:
    """The end of the epoch being planned; `start` itself if this epoch needs no step of the end of input."""
    if start.flushed and start.marker > before:
        return start
    if committed is None or not all_ended(committed, watches):
        return start
    _refuse_policy(start.uid, committed)
    if start.marker == before:
        return replace(start, marker=start.marker + 1, flushed=False)
    return replace(start, flushed=True)


def taken_over(committed: LoggedOffsets | None, watches: Sequence[str], stays: Sequence[int]) -> int | None:
    """The marker's event time for the least watermark of the producers, microseconds.

    A source that has ended holds nothing back. None: one has no watermark yet, or all have ended.
    """
    logged = {} if committed is None else {raw["uid"]: raw for raw in committed.sources if kind_of(raw) is not None}
    open_ = [(logged.get(uid, {}), late) for uid, late in zip(watches, stays, strict=True)]
    known = [(raw.get("watermark", 0), late) for raw, late in open_ if not raw.get("ended")]
    if not known or not all(watermark for watermark, _ in known):
        return None
    return NEVER_MICROS + 1000 * int(min(watermark - late for watermark, late in known))


def passed_watermark(logged: LoggedOffsets | None) -> int:
    """The watermark in an epoch, ms, to pass on; 0: none. The end of time is passed on by the exchange's seal."""
    found = 0 if logged is None else int(logged.metadata.get("batchWatermarkMs", 0))
    return found if found < (END_MICROS - NEVER_MICROS) // 1000 else 0


def _refuse_policy(uid: str, committed: LoggedOffsets) -> None:
    conf: Mapping[str, Any] = committed.metadata.get("conf", {})
    if str(conf.get(_POLICY, "min")).lower() == "max":
        raise max_policy_error(f"end of input '{uid}', after epoch {committed.epoch}")


def max_policy_error(who: str) -> ConfigurationError:
    """The error that rejects `multipleWatermarkPolicy=max`."""
    return ConfigurationError(
        f"{_POLICY} is 'max': the end of one source would make all rows of the others late",
        operator=who,
        kept="no end of input was emitted; committed epochs are unchanged",
        do=f"leave {_POLICY} at 'min', its default; a checkpoint keeps the policy of its first start",
    )
