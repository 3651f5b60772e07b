"""A share of a source's rows, as the control event `sample` asks for it, chosen alike whenever an epoch is read.

That depends on a row's channel, the begin of its range and its number there. So a range that is sampled is not split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_ext.model.control import channel, source
from spark_ext.model.offsets import Json

if TYPE_CHECKING:
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.offsets import Range


def shares_of(configuration: Configuration, uid: str, pieces: Sequence[Range]) -> dict[str, float]:
    """The shares of an epoch's ranges by channel, without those that are read whole; a channel's own one counts."""
    if "sample" not in configuration.standing:
        return {}
    whole = configuration.of("sample", source(uid)) or {"fraction": 1}
    wanted = {
        piece.channel: float((configuration.of("sample", channel(uid, piece.channel)) or whole)["fraction"])
        for piece in pieces
    }
    return {name: share for name, share in wanted.items() if share < 1}


def sampled(batches: Iterable[pa.RecordBatch], piece: Range, shares: Mapping[str, float]) -> Iterator[pa.RecordBatch]:
    """The rows of a range that are chosen; a channel without a share is read whole."""
    share = shares.get(piece.channel)
    if share is None:
        yield from batches
        return
    seed = np.array([_seed([piece.channel, piece.start])], np.uint64)
    first = 0
    for batch in batches:
        numbers = np.arange(first, first + batch.num_rows, dtype=np.uint64)
        first += batch.num_rows
        chosen = batch.filter(pa.array(uniform(seed, numbers) < share))
        if chosen.num_rows:
            yield chosen


def keeps_bad_row(piece: Range, shares: Mapping[str, float]) -> Callable[[int], bool] | None:
    """Which bad rows of a range are chosen, by their number among these; None: all are."""
    share = shares.get(piece.channel)
    if share is None:
        return None

    def keeps(number: int) -> bool:
        seed = np.array([_seed(["bad", piece.channel, piece.start])], np.uint64)
        return bool(uniform(seed, np.array([number], np.uint64))[0] < share)

    return keeps


def _seed(of: Json) -> int:
    text = json.dumps(of, sort_keys=True)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


# SplitMix64 (Steele, Lea, Flood 2014) as a hash of a counter.
UInt64s = npt.NDArray[np.uint64]

STEP = np.uint64(0x9E3779B97F4A7C15)  # what is added per number: 2**64 divided by the golden ratio


def mix(values: UInt64s) -> UInt64s:
    """SplitMix64's finalizer: 64 bits in, 64 well-mixed bits out."""
    values = values + STEP
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64s = values ^ (values >> np.uint64(31))
    return mixed


def uniform(seed: UInt64s, numbers: UInt64s) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) that belong to a seed (an array of one number) and to counters."""
    found: npt.NDArray[np.float64] = (mix(seed + numbers * STEP) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found
