"""A share of a source's rows, as the control event `sample` asks for it, chosen alike whenever an epoch is read.

Whether a row is chosen depends on its channel, on where its range begins, and on its number within the range. A range
of which a share is read is therefore not split.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from spark_ext.model.control import channel, source
from spark_ext.model.offsets import Json

if TYPE_CHECKING:
    import pyarrow as pa

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
    """The rows of a range that are chosen.

    Args:
        shares: by channel; a channel without one is read whole.
    """
    share = shares.get(piece.channel)
    if share is None:
        yield from batches
        return
    import numpy as np
    import pyarrow as pa

    from spark_ext.sources.splitmix import uniform

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
        import numpy as np

        from spark_ext.sources.splitmix import uniform

        seed = np.array([_seed(["bad", piece.channel, piece.start])], np.uint64)
        return bool(uniform(seed, np.array([number], np.uint64))[0] < share)

    return keeps


def _seed(of: Json) -> int:
    text = json.dumps(of, sort_keys=True)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
