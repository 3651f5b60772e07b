"""Keys and values of messages as columns, and where those are that cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from spark_ext.errors import DataError
from spark_ext.sources import registered
from spark_ext.sources.contract import BadRow
from spark_ext.sources.kafka_range.bounds import TopicPartition, name


def decoded(
    batch: pa.RecordBatch,
    decoders: Mapping[str, registered.Decoder],
    names: Sequence[str],
    place: TopicPartition,
    bad: Callable[[BadRow, DataError], None],
    who: str,
) -> pa.RecordBatch:
    """A batch with decoded columns, without its bad rows."""

    def report(row: int, column: str, reason: str) -> None:
        offset, content = batch.column("offset")[row].as_py(), batch.column(column)[row].as_py()
        error = DataError(
            f"the {column} of the message at offset {offset} of {name(place)} is bad: {reason}",
            operator=who,
            kept="everything up to the previous epoch; no row of this one was committed",
            do="load with on_bad_row=quarantine, or correct the option for its format",
        )
        position = {"topic": place[0], "partition": place[1], "offset": offset}
        bad(BadRow(position, f"{column}: {reason}", content), error)

    return registered.decoded(batch, decoders, names, report)
