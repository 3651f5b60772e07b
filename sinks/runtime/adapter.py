"""A `TwoPhaseCommitSink` as a data source of Spark: what `spark_ext.register` gives to `spark.dataSource.register`.

What Spark pickles: at registration the adapter's class, and for each epoch an instance. An adapter class is made at run
time, so no module has it, and cloudpickle sends it by value: a name, a base, and the sink's class. That class is sent
as any other: by reference if it can be imported, by value if it belongs to the `__main__` of a notebook or script.
Instances are sent as the sink alone, and wrapped again where they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from spark_ext.failures import record
from spark_ext.masking import guarded
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.runtime.writer import EpochWriter


class SinkAdapter(DataSource):
    """Holds one sink; subclasses name its class."""

    contract: ClassVar[type[TwoPhaseCommitSink]]
    """The class that was registered."""

    sink: TwoPhaseCommitSink

    def __init__(self, options: Mapping[str, str]) -> None:
        # The options stay with the sink, which knows how to keep secrets.
        super().__init__({})
        with guarded():
            self.sink = self.contract(options)

    @classmethod
    def name(cls) -> str:
        """The sink's format name."""
        return cls.contract.name()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The sink's writer and committer."""
        record.install()
        return EpochWriter(self.sink, schema)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _wrapped, (self.sink,)


@cache
def data_source(kind: type[TwoPhaseCommitSink]) -> type[SinkAdapter]:
    """The data source that wraps a class of sinks."""
    described = {"contract": kind, "__module__": __name__, "__doc__": kind.__doc__}
    return type(f"SinkAdapter({kind.__name__})", (SinkAdapter,), described)


def _wrapped(sink: TwoPhaseCommitSink) -> SinkAdapter:
    """An adapter that has arrived in another process."""
    kind = data_source(type(sink))
    made = kind.__new__(kind)
    made.__dict__.update(options={}, sink=sink)
    return made
