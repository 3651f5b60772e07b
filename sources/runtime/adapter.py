"""A `ChannelSource` as a data source of Spark, for streaming and batch reads. Authors of sources need not read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_ext.errors import refused
from spark_ext.failures import record
from spark_ext.masking import guarded
from spark_ext.options import UID
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.runtime.batch import BadRowsReader, BatchReader, bad_rows_schema
from spark_ext.sources.runtime.reader import ChannelReader

BAD_ROWS_OF: Final = "bad_rows_of"
"""Option of a batch read that returns the bad rows: the schema that the rows are read with, as DDL; `*`: the source's
own."""

# What Spark pickles: at registration the adapter's class, which reaches the process that creates the source; from then
# on instances, which travel to planners and to every task. An adapter class is made at run time, so no module has it,
# and cloudpickle sends it by value: a name, a base, and the source's class. That class is sent as any other: by
# reference if it can be imported, by value if it belongs to the `__main__` of a notebook or script. Instances are sent
# as the source alone, and wrapped again where they arrive.


@dataclass(frozen=True)
class BatchOptions:
    """What a batch read may ask for, or leave out, and a stream may not. Spark does not say which of them it makes."""

    unnamed: bool = False  # no uid was given
    bad_rows_of: str | None = None


class SourceAdapter(DataSource):
    """Holds one source; subclasses name its class."""

    contract: ClassVar[type[ChannelSource]]

    source: ChannelSource
    batch: BatchOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        # The options stay with the source, which knows how to keep secrets.
        super().__init__({})
        given = {name.lower(): value for name, value in options.items()}
        self.batch = BatchOptions(not given.get("uid"), given.pop(BAD_ROWS_OF, None))
        if self.batch.unnamed:
            name = self.contract.name()
            given["uid"] = name if UID.fullmatch(name) else "source"
        with guarded():
            self.source = self.contract(given)

    @classmethod
    def name(cls) -> str:
        """The source's format name."""
        return cls.contract.name()

    def schema(self) -> StructType | str:
        """The source's schema."""
        with guarded():
            return self.source.schema() if self.batch.bad_rows_of is None else bad_rows_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The source's planner and reader."""
        record.install()
        with guarded():
            given, options = dict(self.source.given), self.source.options
            if self.batch.unnamed:
                del given["uid"]
                options.parse(self.name(), given)
            if self.batch.bad_rows_of is not None:
                raise refused(
                    f"the option '{BAD_ROWS_OF}' is for batch reads",
                    f"source '{options.uid}'",
                    "read the bad rows with spark.read; a job moves them into a table with on_bad_row=quarantine",
                )
        return ChannelReader(self.source, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The source's planner and reader for one batch read."""
        record.install()
        with guarded():
            kind, given = type(self.source), self.source.options.without_pace(self.source.given)
            if self.batch.bad_rows_of is None:
                return BatchReader(kind(given), schema)
            source = kind({**given, "on_bad_row": "quarantine"})
            return BadRowsReader.of(source, self.batch.bad_rows_of, schema, named=not self.batch.unnamed)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _wrapped, (self.source, self.batch)


@cache
def data_source(kind: type[ChannelSource]) -> type[SourceAdapter]:
    """The data source that wraps a class of sources."""
    described = {"contract": kind, "__module__": __name__, "__doc__": kind.__doc__}
    return type(f"SourceAdapter({kind.__name__})", (SourceAdapter,), described)


def _wrapped(source: ChannelSource, batch: BatchOptions) -> SourceAdapter:
    """An adapter that has arrived in another process."""
    kind = data_source(type(source))
    made = kind.__new__(kind)
    made.__dict__.update(options={}, source=source, batch=batch)
    return made
