"""What sources and sinks have in common: a format name, and registration by spark-ext rather than by Spark.

The contracts of sources and sinks are plain classes that know nothing of Spark's data source API. `spark_ext.register`
wraps a class as the data source that Spark expects; see `spark_ext.spark.session.formats`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NoReturn

from pyspark.sql.datasource import DataSource

from spark_ext.errors import ConfigurationError
from spark_ext.options import Options


class Connector(ABC):
    """A source or a sink, known by its format name."""

    options_type: ClassVar[type[Options]] = Options  # the class of its options

    @classmethod
    @abstractmethod
    def name(cls) -> str:
        """The format name."""

    def streamReader(self, *given: object, **named: object) -> NoReturn:
        """Called by Spark only if the class itself was given to `spark.dataSource.register`."""
        raise ConfigurationError(
            f"the class {type(self).__qualname__} was registered with spark.dataSource.register",
            operator=f"format '{self.name()}'",
            kept="nothing was started",
            do=f"register it with spark_ext.register(spark, {type(self).__name__})",
        )

    reader = writer = streamWriter = streamReader


# Spark checks the class before it calls anything, and its error suggests no remedy. A virtual subclass passes the check
# and is then refused by the methods above, whose error does.
DataSource.register(Connector)  # type: ignore[type-abstract]
