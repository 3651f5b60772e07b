"""A `ChannelSource` as a data source of Spark: what `spark_ext.register` gives to `spark.dataSource.register`.

What Spark pickles: at registration the adapter's class, which reaches the process that creates the source; from then on
instances, which travel to planners and to every task. An adapter class is made at run time, so no module has it, and
cloudpickle sends it by value: a name, a base, and the source's class. That class is sent as any other: by reference if
it can be imported, by value if it belongs to the `__main__` of a notebook or script. Instances are sent as the source
alone, and wrapped again where they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_ext.failures import record
from spark_ext.masking import guarded
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.runtime.reader import ChannelReader


class SourceAdapter(DataSource):
    """Holds one source; subclasses name its class."""

    contract: ClassVar[type[ChannelSource]]
    """The class that was registered."""

    source: ChannelSource

    def __init__(self, options: Mapping[str, str]) -> None:
        # The options stay with the source, which knows how to keep secrets.
        super().__init__({})
        with guarded():
            self.source = self.contract(options)

    @classmethod
    def name(cls) -> str:
        """The source's format name."""
        return cls.contract.name()

    def schema(self) -> StructType | str:
        """The source's schema."""
        with guarded():
            return self.source.schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The source's planner and reader."""
        record.install()
        return ChannelReader(self.source, schema)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _wrapped, (self.source,)


@cache
def data_source(kind: type[ChannelSource]) -> type[SourceAdapter]:
    """The data source that wraps a class of sources."""
    described = {"contract": kind, "__module__": __name__, "__doc__": kind.__doc__}
    return type(f"SourceAdapter({kind.__name__})", (SourceAdapter,), described)


def _wrapped(source: ChannelSource) -> SourceAdapter:
    """An adapter that has arrived in another process."""
    kind = data_source(type(source))
    made = kind.__new__(kind)
    made.__dict__.update(options={}, source=source)
    return made
