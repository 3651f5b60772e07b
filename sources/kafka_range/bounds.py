"""Where `kafka_range` begins and ends in each partition: the options, and the offsets that they stand for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, Literal

from spark_ext.errors import DataError, refused
from spark_ext.sources.staged import Cutover

TopicPartition = tuple[str, int]
EARLIEST: Final = -2  # as in the options of Spark's own Kafka source
LATEST: Final = -1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
NOTHING_READ: Final = "everything that was committed; nothing of this epoch was read"


@dataclass(frozen=True)
class Bound:
    """One end of a range: a keyword for all partitions, or an offset or a time for each."""

    word: Literal["earliest", "latest", "none"] | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    time: int | None = None  # of all partitions, milliseconds since 1970 UTC
    times: Mapping[TopicPartition, int] | None = None

    @classmethod
    def of(cls, text: str, words: tuple[str, ...]) -> Bound:
        """Parse an option: one of the keywords, or `{"topic": {"0": 23}}`."""
        if text in words:
            return cls(word=text)  # type: ignore[arg-type]
        return cls(offsets=_by_partition(text, _offset, f"{', '.join(words)} or offsets"))

    @classmethod
    def at(cls, text: str) -> Bound:
        """Parse an option: a time for all partitions, or `{"topic": {"0": "2024-01-01"}}`."""
        if text.lstrip().startswith("{"):
            return cls(times=_by_partition(text, milliseconds, "a time or times"))
        return cls(time=milliseconds(text))

    def time_of(self, place: TopicPartition) -> int | None:
        """The time of a partition, if it has one."""
        return self.times.get(place) if self.times is not None else self.time


def milliseconds(value: object) -> int:
    """An ISO 8601 time (UTC if no zone is given), or milliseconds since 1970 UTC."""
    text = str(value).strip()
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as '2024-01-31T12:00:00' or 1706702400000") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    # Up: a message of the millisecond in which the time lies may be earlier.
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError(f"{value!r} is not an offset")
    return value


def _by_partition(text: str, of: Callable[[object], int], wanted: str) -> dict[TopicPartition, int]:
    try:
        found = json.loads(text)
        return {(topic, int(number)): of(value) for topic, parts in found.items() for number, value in parts.items()}
    except (json.JSONDecodeError, AttributeError, TypeError):
        raise ValueError(f'give {wanted} by partition, such as {{"topic": {{"0": 23}}}}') from None


@dataclass(frozen=True)
class Ends:
    """The brokers' offsets of partitions."""

    earliest: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]  # the end that a `read_committed` reader sees


Ask = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]
"""Looks up the first offset at or after a time, ms, by partition; -1: none."""


def begins(
    bound: Bound,
    places: Iterable[TopicPartition],
    ends: Ends,
    ask: Ask,
    who: str,
    *,
    accept: bool,
    future: bool = False,
    matched: bool = False,
) -> dict[TopicPartition, int]:
    """The first offsets of partitions; with `accept`, messages that retention has deleted are skipped.

    With `future` a time may be in the future, and earlier messages that come until then are read. With `matched` each
    partition must have a message at or after its time.
    """
    out = {}
    now = time.time() * 1000
    for place, found in _resolved(bound, list(places), ends, ask, who, "starting", matched=matched).items():
        if not future and (bound.time_of(place) or 0) > now and found == ends.latest[place]:
            raise refused(
                f"the option 'starting_timestamp' is in the future, and {name(place)} has no message of that time: "
                "until then earlier messages would be read",
                who,
                "start the job at that time, or use starting=latest with a condition on the column timestamp",
            )
        low, high = ends.earliest[place], ends.latest[place]
        if found > high:
            what = f"{name(place)} ends at offset {high}, before the offset {found} of the option 'starting'"
            raise refused(what, who, "correct the option, or use starting=latest")
        if found < low and not accept:
            raise lost(place, found, low, who)
        out[place] = max(found, low)
    return out


def finishes(
    bound: Bound, places: Iterable[TopicPartition], ends: Ends, ask: Ask, who: str, *, grace: int
) -> dict[TopicPartition, int | None]:
    """The end offsets of partitions; None: unbounded, or a time that is not `grace` ms in the past yet."""
    if bound.word == "none":
        return dict.fromkeys(places)
    now = time.time() * 1000
    found = _resolved(bound, list(places), ends, ask, who, "ending")
    return {place: None if (bound.time_of(place) or 0) + grace > now else offset for place, offset in found.items()}


def _resolved(
    bound: Bound, places: list[TopicPartition], ends: Ends, ask: Ask, who: str, option: str, *, matched: bool = False
) -> dict[TopicPartition, int]:
    if bound.word is not None:
        chosen = ends.earliest if bound.word == "earliest" else ends.latest
        return {place: chosen[place] for place in places}
    given = bound.offsets if bound.offsets is not None else bound.times
    if given is None:
        assert bound.time is not None
        given = dict.fromkeys(places, bound.time)
    option += "" if bound.offsets is not None else "_timestamp"
    for place in places:
        if place not in given:
            raise refused(f"the option '{option}' does not name {name(place)}", who, "name every partition in it")
    for place in given:
        if place not in places:
            raise refused(f"the option '{option}' names {name(place)}, which does not exist", who, "remove it")
    if bound.offsets is not None:
        special = {EARLIEST: ends.earliest, LATEST: ends.latest}
        return {place: special[given[place]][place] if given[place] < 0 else given[place] for place in places}
    found = ask({place: given[place] for place in places})
    if matched and (without := [name(place) for place in places if found[place] < 0]):
        raise refused(
            f"{without[0]}" + (f" and {len(without) - 1} more" if without[1:] else "") + " has no message at or after "
            f"its {option}",
            who,
            "correct the time, or set starting_timestamp_unmatched=latest, by which such a partition begins at its end",
        )
    return {place: ends.latest[place] if found[place] < 0 else found[place] for place in places}


_SEAM: Final = "give the stage before it a seam that names topic, partition and offset: 'topic:partition:offset'"


def after(offsets: Mapping[str, int], who: str) -> dict[TopicPartition, int]:
    """Where partitions continue behind the last offsets, by `topic:partition`, or `partition` of the only topic."""
    given: dict[TopicPartition, int] = {}
    for key, at in offsets.items():
        topic, _, number = key.rpartition(":")
        if not number.isdecimal():
            raise refused(f"the stage before it has ended at offset {at} of '{key}', which is no partition", who, _SEAM)
        given[topic, int(number)] = at + 1
    return given


def among(given: Mapping[TopicPartition, int], places: Iterable[TopicPartition], who: str) -> dict[TopicPartition, int]:
    """Those of the offsets at which partitions continue that are of partitions which are read."""
    there = set(places)
    topics = {topic for topic, _ in there}
    if len(topics) > 1 and any(not topic for topic, _ in given):
        raise refused(
            f"the stage before it names partitions without their topic, and there are {len(topics)} topics", who, _SEAM
        )
    resolved = {(topic or next(iter(topics), ""), number): at for (topic, number), at in given.items()}
    for place in resolved.keys() - there:
        if place[0] in topics:
            raise refused(
                f"the stage before it has ended at offset {resolved[place] - 1} of {name(place)}, which does not exist",
                who,
                "name the topic from which the earlier stage was filled",
            )
    return {place: at for place, at in resolved.items() if place in there}


def rest(there: Mapping[TopicPartition, Sequence[int]], cutover: Cutover, who: str) -> dict[TopicPartition, int]:
    """Where a partition begins before the first later message: at those of the cutover's millisecond that are left."""
    found = sum(map(len, there.values()))
    if cutover.rows is None or found in (0, cutover.rows):
        return {}
    if cutover.rows < found and len(there) == 1 and not cutover.uncounted:
        ((place, offsets),) = there.items()
        return {place: offsets[cutover.rows]}
    assert cutover.time is not None
    moment = _EPOCH + timedelta(milliseconds=cutover.time // 1000)
    raise DataError(
        f"the stage before it ended with {cutover.rows} rows of {moment.isoformat(timespec='milliseconds')}, and "
        f"{found} messages in {len(there)} partitions have that timestamp: which of them it has read cannot be told",
        operator=who,
        kept="the rows of the stage before it, up to the last committed epoch; nothing of this one was read",
        do=f"{_SEAM}; and begin with a new uid and an empty target",
    )


def id_of(place: TopicPartition) -> str:
    """A partition as the id of a channel."""
    return f"{place[0]}-{place[1]}"


def place_of(id: str) -> TopicPartition:
    """The partition of a channel's id."""
    topic, _, number = id.rpartition("-")
    return topic, int(number)


def name(place: TopicPartition) -> str:
    """A partition, for messages."""
    return f"partition {place[1]} of topic '{place[0]}'"


def lost(place: TopicPartition, wanted: int, low: int, who: str) -> DataError:
    """The error of messages that were deleted before they were read."""
    what = f"offsets {wanted} to {low - 1} of {name(place)} no longer exist: retention has deleted them"
    do = "raise the topic's retention; to continue without them, set the option lost_records=accept"
    return DataError(what, operator=who, kept=NOTHING_READ, do=do)


def options_of(given: Mapping[str, Any]) -> tuple[Bound, Bound]:
    """Both bounds, from the options by name."""
    for end in ("starting", "ending"):
        if given[end] is not None and given[f"{end}_timestamp"] is not None:
            raise ValueError(f"{end} and {end}_timestamp exclude each other")
    start, stop = given["starting_timestamp"], given["ending_timestamp"]
    return (
        Bound.at(start) if start is not None else Bound.of(given["starting"] or "earliest", ("earliest", "latest")),
        Bound.at(stop) if stop is not None else Bound.of(given["ending"] or "latest", ("latest", "none")),
    )
