"""The registry of sources and sinks: format name to class, one per process.

The class registered last under a name wins, as in Spark. Shipped classes are imported on first use, so that nobody pays
for connectors that it does not use. Python workers, which are other processes, know only these.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from spark_ext.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

# `module:class` of each shipped source and sink, by format name.
SHIPPED: Final[Mapping[str, str]] = {
    "files": "spark_ext.sources.files.source:Files",
    "delta_snapshot": "spark_ext.sources.delta_snapshot.source:DeltaSnapshot",
    "datagen": "spark_ext.sources.datagen:DataGen",
    "hybrid": "spark_ext.sources.hybrid.source:Hybrid",
    "kafka_range": "spark_ext.sources.kafka_range.source:KafkaRange",
    "postgres": "spark_ext.sources.postgres.source:Postgres",
    "exchange": "spark_ext.sources.exchange:ExchangeSource",
    "http_ingest": "spark_ext.sources.http_ingest:HttpIngestSource",
    "control": "spark_ext.sources.control_events:ControlEvents",
    "control_stamp": "spark_ext.sources.control_stamp:ControlStamp",
    "end_of_input": "spark_ext.sources.end_of_input:EndOfInput",
    "delta_2pc": "spark_ext.sinks.delta_2pc:DeltaTwoPhaseCommit",
    "exchange_2pc": "spark_ext.sinks.exchange_2pc:ExchangeSink",
    "files_2pc": "spark_ext.sinks.files_2pc.sink:FilesTwoPhaseCommit",
    "kafka_2pc": "spark_ext.sinks.kafka_2pc.sink:KafkaTwoPhaseCommit",
    "http_2pc": "spark_ext.sinks.http_2pc.sink:HttpTwoPhaseCommit",
    "postgres_2pc": "spark_ext.sinks.postgres_2pc.sink:PostgresTwoPhaseCommit",
}

_CHANNEL_SOURCE: Final = "spark_ext.sources.contract:ChannelSource"

# From a contract to the function that wraps its classes as Spark data sources. This module must not import either.
_ADAPTERS: Final[Mapping[str, str]] = {
    _CHANNEL_SOURCE: "spark_ext.sources.runtime.adapter:data_source",
    "spark_ext.sinks.contract:TwoPhaseCommitSink": "spark_ext.sinks.runtime.writer:data_source",
}

_registered: dict[str, type[Any]] = {}  # by format name in lower case: Spark ignores case


def load() -> tuple[type[Any], ...]:
    """Every shipped class."""
    return tuple(map(_imported, SHIPPED.values()))


def add(kind: type[Any]) -> None:
    """Register a class under its format name in this process; `spark_ext.register` does it for a session's classes."""
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigurationError(
            f"the class {kind.__qualname__} does not implement {missing}",
            operator="spark_ext.register",
            kept="nothing was registered",
            do="implement the methods as the contract describes; register only concrete classes",
        )
    _registered[kind.name().lower()] = kind


def find(name: str) -> type[Any] | None:
    """The class registered last under a format name, else the shipped one; None if the name is unknown here."""
    name = name.lower()
    if name in _registered or name not in SHIPPED:
        return _registered.get(name)
    return cast("type[Any]", _imported(SHIPPED[name]))


def known() -> dict[str, type[Any]]:
    """All registered and shipped classes, by format name."""
    return {name: _imported(place) for name, place in SHIPPED.items()} | _registered


def is_channel_source(name: str) -> bool:
    """Whether a format that is registered or shipped is a channel source."""
    found = find(name)
    return found is not None and issubclass(found, _imported(_CHANNEL_SOURCE))


def unregistered(name: str, base: type[Any]) -> type[Any] | None:
    """A subclass of `base` with a format name that `find` does not know: defined but never registered. For messages."""
    subclasses: list[type[Any]] = base.__subclasses__()
    for kind in subclasses[::-1]:
        found = unregistered(name, kind)
        if found is not None:
            return found
        if not inspect.isabstract(kind) and kind.name().lower() == name.lower():
            return kind
    return None


def data_source(kind: type[Any]) -> type[DataSource]:
    """The class to register with Spark: a data source that wraps the given class, or the class itself if it is one."""
    for contract, adapter in _ADAPTERS.items():
        if issubclass(kind, _imported(contract)):
            return cast("type[DataSource]", _imported(adapter)(kind))
    from pyspark.sql.datasource import DataSource

    if DataSource in kind.__mro__:
        return kind
    raise ConfigurationError(
        f"the class {kind.__qualname__} is neither a source nor a sink",
        operator="spark_ext.register",
        kept="nothing was registered",
        do="derive it from ChannelSource, TwoPhaseCommitSink or Spark's own DataSource",
    )


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
