"""A known number of Nexmark's events: each is a function of its number, so that any part of them can be made alone.

Proportions, ids, hot keys, prices and life times are those of Nexmark's own generator: of 50 events one is a person,
three are auctions and 46 are bids. Event time runs at `RATE` events per second, in whole milliseconds. Events arrive
out of order within each `GROUP`, so at most a second late. All sides read the same Parquet files, a folder per stream.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Numbers = npt.NDArray[np.int64]

RATE: Final = 10_000  # events per second of event time
GROUP: Final = 10_000  # events within which they arrive in another order
FILES: Final = 20  # per stream, unless told otherwise; each is an epoch
BEGIN: Final = np.datetime64("2026-01-01T00:00:00", "us")
KEYS: Final = 10_000  # rows of the side input of query 13
FIRST_ID: Final = 1000
_IN_FLIGHT: Final = 100  # auctions, and hot ids are multiples of it
_ACTIVE: Final = 1000  # people
_AHEAD: Final = 10  # ids that are named before they exist
_FIRST: Final = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST: Final = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CITIES: Final = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
)  # fmt: skip
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")


class _Dice:
    """Random numbers that depend on the event and on how many were drawn before (SplitMix64)."""

    def __init__(self, events: Numbers) -> None:
        self._events = events.astype(np.uint64) << np.uint64(8)
        self._drawn = 0

    def bits(self) -> npt.NDArray[np.uint64]:
        self._drawn += 1
        mixed = (self._events + np.uint64(self._drawn)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))

    def below(self, bound: int | Numbers) -> Numbers:
        return ((self.bits() >> np.uint64(11)) % np.asarray(bound, np.uint64)).astype(np.int64)

    def price(self) -> Numbers:
        share = (self.bits() >> np.uint64(11)) / float(1 << 53)
        return np.round(10 ** (share * 6) * 100).astype(np.int64)

    def one_of(self, names: tuple[str, ...]) -> pa.Array:
        return pa.array(names).take(pa.array(self.below(len(names))))

    def text(self, length: int) -> pa.Array:
        words = np.stack([self.bits() for _ in range(-(-length // 8))], axis=1)
        letters = np.ascontiguousarray(words.view(np.uint8)[:, :length]) % 26 + ord("a")
        ends = pa.py_buffer(np.arange(len(words) + 1, dtype=np.int32) * length)
        return pa.StringArray.from_buffers(len(words), ends, pa.py_buffer(letters.astype(np.uint8)))


def arriving(first: int, end: int) -> Numbers:
    """The numbers of the events that arrive at these places, in the order of their arrival."""
    places = np.arange(first, end, dtype=np.int64)
    return places - places % GROUP + places % GROUP * 953 % GROUP  # Nexmark's own permutation


def _times(events: Numbers, later_ms: int | Numbers = 0) -> pa.Array:
    moments = BEGIN + (events * 1000 // RATE + later_ms) * np.timedelta64(1000, "us")
    return pa.array(moments).cast(pa.timestamp("us", "UTC"))


def _last_person(events: Numbers) -> Numbers:
    return events // 50


def _last_auction(events: Numbers) -> Numbers:
    return events // 50 * 3 + np.where(events % 50 == 0, -1, np.minimum(events % 50, 3) - 1)


def _person_id(events: Numbers, dice: _Dice, hot_of: int, hot: Numbers) -> Numbers:
    """A hot person, but in one of `hot_of` cases one of those that are active."""
    people = _last_person(events) + 1
    active = np.minimum(people, _ACTIVE)
    some = people - active + dice.below(active + _AHEAD)
    return FIRST_ID + np.where(dice.below(hot_of) > 0, hot, some)


def people(events: Numbers, hot: bool = False) -> pa.Table:
    """Of the events those that are people; `hot` makes no difference."""
    events = events[events % 50 == 0]
    dice = _Dice(events)
    digits = [pc.utf8_lpad(pc.cast(pa.array(dice.below(10_000)), pa.string()), 4, "0") for _ in range(4)]
    name = pc.binary_join_element_wise(dice.one_of(_FIRST), dice.one_of(_LAST), " ")
    return pa.table(
        {
            "id": FIRST_ID + _last_person(events), "name": name,
            "emailAddress": pc.binary_join_element_wise(dice.text(7), dice.text(5), "@"),
            "creditCard": pc.binary_join_element_wise(*digits, " "),
            "city": dice.one_of(_CITIES), "state": dice.one_of(_STATES), "dateTime": _times(events),
            "extra": dice.text(100), "event": events,
        }
    )  # fmt: skip


def auctions(events: Numbers, hot: bool = False) -> pa.Table:
    """Of the events those that are auctions; `hot` makes no difference."""
    events = events[(events % 50 > 0) & (events % 50 < 4)]
    dice = _Dice(events)
    bid, person = dice.price(), _last_person(events)
    lifetime = 2 * (events + _IN_FLIGHT * 50 // 3) * 1000 // RATE - 2 * (events * 1000 // RATE)  # twice, in ms
    return pa.table(
        {
            "id": FIRST_ID + _last_auction(events), "itemName": dice.text(20), "description": dice.text(100),
            "initialBid": bid, "reserve": bid + dice.price(), "dateTime": _times(events),
            "expires": _times(events, 1 + dice.below(lifetime)),
            "seller": _person_id(events, dice, 4, person // 100 * 100), "category": 10 + dice.below(5),
            "extra": dice.text(200), "event": events,
        }
    )  # fmt: skip


def bids(events: Numbers, hot: bool = False) -> pa.Table:
    """Of the events those that are bids; with `hot`, nine of ten are by one bidder for one auction."""
    events = events[events % 50 >= 4]
    dice = _Dice(events)
    last = _last_auction(events)
    some = np.maximum(last - _IN_FLIGHT, 0)
    some += dice.below(last - some + 1 + _AHEAD)
    auction = FIRST_ID + np.where(dice.below(2) > 0, last // 100 * 100, some)
    bidder = _person_id(events, dice, 4, _last_person(events) // 100 * 100 + 1)
    if hot:
        one = dice.below(10) > 0
        auction, bidder = np.where(one, FIRST_ID, auction), np.where(one, FIRST_ID, bidder)
    number = dice.below(10_000)
    named = pc.binary_join_element_wise("channel", pc.cast(pa.array(number), pa.string()), "-")
    channel = pc.if_else(pa.array(dice.below(2) > 0), dice.one_of(_CHANNELS), named)
    site = pc.binary_join_element_wise(
        "https://www.nexmark.com", dice.text(5), dice.text(5), "item.htm?channel_id=", "/"
    )
    return pa.table(
        {
            "auction": auction, "bidder": bidder, "price": dice.price(), "channel": channel,
            "url": pc.binary_join_element_wise(site, pc.cast(pa.array(number), pa.string()), ""),
            "dateTime": _times(events), "extra": dice.text(36), "event": events,
        }
    )  # fmt: skip


STREAMS: Final[Mapping[str, Callable[[Numbers, bool], pa.Table]]] = {
    "person": people, "auction": auctions, "bid": bids,
}  # fmt: skip


def side_input() -> pa.Table:
    keys = np.arange(KEYS, dtype=np.int64)
    return pa.table({"key": keys, "value": _Dice(keys).text(12)})


def write(folder: Path, events: int, files: int = FILES, *, hot: bool = False) -> Path:
    """Write all events below a folder, unless they are there; returns the folder of their streams."""
    if events % (files * GROUP):
        raise ValueError(f"the number of events must be a multiple of {files * GROUP:,}, and is {events:,}")
    place = folder / f"{events}-{files}{'-hot' if hot else ''}"
    if (place / "complete").exists():
        return place
    (place / "side").mkdir(parents=True, exist_ok=True)
    pq.write_table(side_input(), place / "side" / "part-0.parquet")
    step = events // files
    for number in range(files):
        arrived = arriving(number * step, (number + 1) * step)
        for stream, make in STREAMS.items():
            (place / stream).mkdir(exist_ok=True)
            _write(make(arrived, hot), place / stream / f"part-{number:03}.parquet", number)
    (place / "complete").touch()
    return place


def _write(rows: pa.Table, path: Path, number: int) -> None:
    # Two groups at least, for two tasks.
    options: dict[str, Any] = {"row_group_size": max(1000, rows.num_rows // 4), "compression": "snappy"}
    pq.write_table(rows, path, **options)
    moment = BEGIN.astype("datetime64[s]").astype(int) + number  # Spark reads files in this order
    os.utime(path, (moment, moment))
