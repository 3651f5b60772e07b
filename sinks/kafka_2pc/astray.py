"""Messages for topics and partitions that do not exist: what is put aside with `on_bad_row=quarantine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.sift import text_of


class Astray:
    """The messages of an epoch that go nowhere.

    Args:
        topic: of all messages; None: they have a column for it.
    """

    def __init__(self, lacking: Mapping[str, int], topic: str | None) -> None:
        self._lacking, self._topic = lacking, topic

    def without(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The other messages, in order."""
        return messages.filter(pc.invert(self._mask(messages)))

    def give(self, messages: pa.RecordBatch, bad: Callable[[BadRow], object]) -> None:
        """Give away those of a batch."""
        found = messages.filter(self._mask(messages))
        for number in range(found.num_rows):
            row = found.slice(number, 1)
            topic = self._topic if self._topic is not None else row["topic"][0].as_py()
            there = self._lacking[topic]
            reason = f"there is no topic '{topic}'"
            if there:
                partition = row["partition"][0].as_py()
                reason = f"the topic '{topic}' has {there} partitions, and the row is for partition {partition}"
            bad(BadRow(None, reason, text_of(_readable(row))))

    def _mask(self, messages: pa.RecordBatch) -> pa.Array:
        mask = pa.repeat(False, messages.num_rows)
        for topic, there in self._lacking.items():
            if self._topic is None:
                mine = pc.equal(messages["topic"], topic)
            else:
                mine = pa.repeat(topic == self._topic, messages.num_rows)
            if there:
                mine = pc.and_(mine, pc.fill_null(pc.greater_equal(messages["partition"], there), False))
            mask = pc.or_(mask, mine)
        return mask


def _readable(row: pa.RecordBatch) -> pa.RecordBatch:
    """Key and value as texts, if they are."""
    columns = []
    for column in row.columns:
        if pa.types.is_binary(column.type):
            with suppress(pa.ArrowInvalid):
                column = column.cast(pa.string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=row.schema.names)
