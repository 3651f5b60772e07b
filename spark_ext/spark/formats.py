"""The data sources and sinks that ship with spark-ext, by name: the one place where the core knows of them.

They are looked up when a session is registered, never on import, so that neither a worker nor a pure
function pays for connectors that it does not use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

SHIPPED: Final[tuple[str, ...]] = (
    "spark_ext.sources.files.source:Files",
    "spark_ext.sources.delta_snapshot.source:DeltaSnapshot",
    "spark_ext.sources.datagen:DataGen",
    "spark_ext.sources.hybrid.source:Hybrid",
    "spark_ext.sources.kafka_range.source:KafkaRange",
    "spark_ext.sources.postgres.source:Postgres",
    "spark_ext.sources.end_of_input:EndOfInput",
    "spark_ext.sinks.delta_2pc:DeltaTwoPhaseCommit",
    "spark_ext.sinks.files_2pc.sink:FilesTwoPhaseCommit",
    "spark_ext.sinks.kafka_2pc.sink:KafkaTwoPhaseCommit",
    "spark_ext.sinks.http_2pc.sink:HttpTwoPhaseCommit",
    "spark_ext.sinks.postgres_2pc.sink:PostgresTwoPhaseCommit",
)
"""`module:class` of every source and sink that `register` puts into a session."""


def load(places: tuple[str, ...] = SHIPPED) -> tuple[type[DataSource], ...]:
    """Import the classes behind `module:class` strings.

    Raises:
        ImportError: a module is missing or does not import.
        AttributeError: a module has no such class.
    """
    classes: list[type[DataSource]] = []
    for place in places:
        module, _, name = place.partition(":")
        classes.append(getattr(import_module(module), name))
    return tuple(classes)
