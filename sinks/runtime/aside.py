"""What a task of a sink does with rows that do not fit: it gives them to `bad_row`, as JSON, with where they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.sift import text_of
from spark_ext.errors import SparkExtError

if TYPE_CHECKING:
    from spark_ext.sinks.contract import Task, TwoPhaseCommitSink


class Aside:
    """The way of a task's bad rows."""

    def __init__(self, sink: TwoPhaseCommitSink, task: Task) -> None:
        self._sink, self._partition = sink, task.partition

    def row(self, number: int, one: pa.RecordBatch, problem: Exception) -> None:
        """Take a row."""
        self._sink.bad_row(BadRow({"partition": self._partition, "row": number}, reason_of(problem), text_of(one)))

    def rows(self, batch: pa.RecordBatch, problem: Exception) -> None:
        """Take all rows of a batch, which have the same fault."""
        for number in range(batch.num_rows):
            text = text_of(batch.slice(number, 1))
            self._sink.bad_row(BadRow({"partition": self._partition}, reason_of(problem), text))


def reason_of(problem: Exception) -> str:
    """What an error says of a row, without what is said of the epoch."""
    return problem.what if isinstance(problem, SparkExtError) else " ".join(str(problem).split())
