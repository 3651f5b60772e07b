"""Sinks that are given a table's name: the name is replaced by the table's location when the query is added.

All that follows knows the location only. A name that leads to another place at the next start is thus a `path` that has
changed, and a table that was dropped and made again is one that lacks the job's commits: both are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.errors import ConfigurationError
from spark_ext.queries import operators
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.spark.backend.kinds import backend_of
from spark_ext.spark.session.catalogue import resolve

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_ext.spark.backend.contract import WriterTarget


def named_table(target: WriterTarget, who: str) -> str | None:
    """The name of the table that a writer is to write to; None if it has none.

    Raises:
        ConfigurationError: it has a path as well.
    """
    option = operators.named_option(target.format)
    name = None if option is None else target.options.get(option)
    if name is not None and target.path is not None:
        raise ConfigurationError(
            f"the options '{option}' and 'path' are both set: '{name}' and '{target.path}'",
            operator=who,
            kept=NOTHING_STARTED,
            do="use one of them",
        )
    return name


def with_path(writer: DataStreamWriter, target: WriterTarget, who: str) -> DataStreamWriter:
    """A writer of a job with the location of its table in place of the name.

    Raises:
        ConfigurationError: there is no such table, or it is not one that has a location of its own; names it.
    """
    option = operators.named_option(target.format)
    assert option is not None
    frame = backend_of(writer).frame(writer)
    name = target.options[option]
    path = resolve(frame.sparkSession, name, f"{who}, sink '{target.options.get('uid')}'", frame.schema)
    backend_of(writer).remove_option(writer, option)
    return writer.option("path", path)
