"""End of input of one watermark: when its marker row is due, and when the state behind it has been flushed.

At the end of bounded input nothing moves the watermark any more, so the last windows would never come out and state
would stay for ever. A small source, `end_of_input`, therefore sits beside the sources under each watermark
(`spark_ext.with_watermark` puts it there) and goes through two steps once all of them have ended and the epoch of
their last rows is committed:

1. `marker` grows by one: an epoch with one row, far in the future, that only the watermark operator sees;
2. `flushed` becomes true: an epoch without a row of its own, which runs under the watermark that the marker has set,
   and so emits and frees all state.

The decision rests on Spark's own offset and commit logs alone, never on a table, so that it is taken in the very
next planning after the commit; a query under `availableNow` would end before it otherwise. Each planner process goes
through both steps again, because a restarted query has forgotten how far each single source had come.

Pure: no clock, no file, no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_ext.errors import ConfigurationError
from spark_ext.model.logged_offsets import LoggedOffsets
from spark_ext.model.offsets import VERSION, Json, OffsetKind, check, kind_of

FORMAT: Final = "end_of_input"
"""Format name of the source."""

UNKNOWN: Final = "?"
"""Stands in `watches` for a source without a uid: nobody can tell when it ends, so the marker never comes."""

TIME: Final = "end_of_time"
"""Column of the source: the marker's event time."""

ZERO: Final = "zero"
"""Column of the source: a zero, of which Spark's optimizer does not know that it is one."""

END_MICROS: Final = 6_248_568_000_000_000_000
"""The marker's event time, microseconds since 1970 UTC: in the year 199979.

Far behind any date that people or mistakes write (9999-12-31, or milliseconds taken for seconds, which gives years
around 57,000), so that such rows are emitted at the end too; and 95,000 years before a 64-bit timestamp overflows, so
that Spark can add gaps, delays and intervals to it.
"""

MAX_UID: Final = 128
"""Longest uid that options accept."""

_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True)
class EndOffset:
    """Offset of an `end_of_input` source."""

    uid: str
    marker: int = 0
    """How many markers have been emitted, over all runs."""
    flushed: bool = False
    """Whether the epoch after the last marker has been planned; once it is committed, the state is empty."""

    def to_json(self) -> dict[str, Json]:
        """The JSON form."""
        return {
            "version": VERSION,
            "kind": OffsetKind.END_OF_INPUT.value,
            "uid": self.uid,
            "marker": self.marker,
            "flushed": self.flushed,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Json], uid: str | None = None) -> EndOffset:
        """Read an offset of any version that was ever written.

        Args:
            raw: the JSON form.
            uid: the source that was given the offset; Spark matches sources by position, so a swap shows here.

        Raises:
            OffsetError: it belongs to another source, has a newer version, or marks no end of input.
        """
        check(raw, OffsetKind.END_OF_INPUT, uid, f"end of input '{raw.get('uid') if uid is None else uid}'")
        return cls(raw["uid"], raw["marker"], raw["flushed"])


def is_end_of_input_offset(raw: Json) -> bool:
    """Whether a line of Spark's offset log was written by an `end_of_input` source."""
    return kind_of(raw) is OffsetKind.END_OF_INPUT


def marker_uid(watches: Sequence[str]) -> str:
    """The uid of the marker of a watermark, from the uids under it; the same whatever their order.

    Unique in a query, because a source is under one watermark only.
    """
    first = min(watches)
    uid = f"{first}~end"
    if len(uid) <= MAX_UID:
        return uid
    import hashlib

    digest = hashlib.sha256(first.encode()).hexdigest()[:8]
    return f"{first[: MAX_UID - len(digest) - 5]}~{digest}~end"


def all_ended(committed: LoggedOffsets, watches: Sequence[str]) -> bool:
    """Whether all watched sources have ended in a committed epoch; False when one is unknown, or none is watched."""
    ended = {raw["uid"] for raw in committed.sources if kind_of(raw) is OffsetKind.CHANNELS and raw.get("ended")}
    return bool(watches) and ended.issuperset(watches)


def next_offset(start: EndOffset, watches: Sequence[str], committed: LoggedOffsets | None, before: int) -> EndOffset:
    """The end of the epoch being planned; `start` itself when the end of input has nothing to do in it.

    Args:
        start: the end of the epoch before.
        watches: uids of the sources under the watermark.
        committed: the newest epoch that Spark has committed; None when there is none.
        before: how many markers had been emitted when this planner process began.

    Raises:
        ConfigurationError: the query runs with the watermark policy `max`, under which the marker of one source that
            has ended would make every row of the others late.
    """
    if start.flushed and start.marker > before:
        return start
    if committed is None or not all_ended(committed, watches):
        return start
    _refuse_policy(start.uid, committed)
    if start.marker == before:
        return replace(start, marker=start.marker + 1, flushed=False)
    return replace(start, flushed=True)


def _refuse_policy(uid: str, committed: LoggedOffsets) -> None:
    conf: Mapping[str, Any] = committed.metadata.get("conf", {})
    if str(conf.get(_POLICY, "min")).lower() == "max":
        raise max_policy_error(f"end of input '{uid}', after epoch {committed.epoch}")


def max_policy_error(who: str) -> ConfigurationError:
    """Why `multipleWatermarkPolicy=max` is refused."""
    return ConfigurationError(
        f"{_POLICY} is 'max': the end of one source would make all rows of the others late",
        operator=who,
        kept="no end of input was emitted; committed epochs are as they were",
        do=f"leave {_POLICY} at 'min', its default; a checkpoint keeps the policy that it began with",
    )
