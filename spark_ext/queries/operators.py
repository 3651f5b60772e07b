"""Operators by format name: builds a source or sink from its options, in the driver, without a query.

The coordinator needs this for what Spark never calls: the acknowledgement of the last epoch, life-cycle hooks, and
the claim of a target. Formats are looked up in the registry of this process, `spark_ext.spark.session.formats`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ext.errors import ConfigurationError
from spark_ext.model.end_of_input import FORMAT as END_OF_INPUT
from spark_ext.options import Options
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sources.aligned import AlignedSource
from spark_ext.sources.contract import ChannelSource
from spark_ext.spark.session import formats

_CONTRACTS = (ChannelSource, TwoPhaseCommitSink)


def is_source(name: str) -> bool:
    """Whether a format is a channel source."""
    return _registered(name, ChannelSource) is not None


def is_ours(name: str) -> bool:
    """Whether a format is a source or sink of a job, or the marker of an end of input."""
    return name.lower() == END_OF_INPUT or is_source(name) or is_sink(name)


def is_aligned(name: str) -> bool:
    """Whether a format is a source that ends when what feeds it has ended, and not by a drain."""
    found = formats.find(name)
    return found is not None and issubclass(found, AlignedSource)


def is_sink(name: str) -> bool:
    """Whether a format is a two-phase commit sink."""
    return _registered(name, TwoPhaseCommitSink) is not None


def source(name: str, options: Mapping[str, str]) -> ChannelSource:
    """Build a source."""
    built: ChannelSource = _known(name, ChannelSource, "source")(options)
    return built


def sink(name: str, options: Mapping[str, str]) -> TwoPhaseCommitSink:
    """Build a sink."""
    built: TwoPhaseCommitSink = _known(name, TwoPhaseCommitSink, "sink")(options)
    return built


def has_option(name: str, option: str) -> bool:
    """Whether the operators of a format declare an option."""
    found = formats.find(name)
    return found is not None and issubclass(found, _CONTRACTS) and option in found.options_type.model_fields


def named_option(name: str) -> str | None:
    """The option of a format that is a table's name in a catalogue; see `Options.by_name`."""
    return _declared(name).by_name


def requires_finalization(name: str) -> bool:
    """Whether the final checkpoint waits for the operators of a format."""
    found = formats.find(name)
    return found is not None and issubclass(found, _CONTRACTS) and found.requires_finalization


def public_options(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options of a format with the values of secrets replaced by `***`; the format says which are secret."""
    declared = _declared(name)
    return {key: declared.shown(key.lower(), value) for key, value in options.items()}


def keep_secret(name: str, options: Mapping[str, str]) -> None:
    """Have the secrets among the options of a format masked in whatever this process writes or raises."""
    _declared(name).keep_secret({key.lower(): value for key, value in options.items()})


def _declared(name: str) -> type[Options]:
    found = formats.find(name)
    return found.options_type if found is not None and issubclass(found, _CONTRACTS) else Options


def moving_fields(name: str) -> frozenset[str]:
    """The options of a format that may change while an epoch is in doubt; see `Options.moving_fields`."""
    return _declared(name).moving_fields


def identity(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """What an operator of a format reads from or writes to, by option, secrets masked; see `Options.identity`."""
    found = formats.find(name)
    if found is None or not issubclass(found, _CONTRACTS):
        return {}
    return found.options_type.parse(name, options).identity()


def _registered(name: str, contract: type[Any]) -> type[Any] | None:
    found = formats.find(name)
    defined = formats.unregistered(name, contract) if found is None else None
    if defined is not None:
        raise ConfigurationError(
            f"the class {defined.__module__}.{defined.__qualname__} has the format name '{name}' and is not registered",
            operator=f"format '{name}'",
            kept="the job's state is unchanged",
            do=f"call spark_ext.register(spark, {defined.__name__}) before the query is defined",
        )
    return found if found is not None and issubclass(found, contract) else None


def _known(name: str, contract: type[Any], role: str) -> type[Any]:
    found = _registered(name, contract)
    if found is not None:
        return found
    raise ConfigurationError(
        f"no {role} with the format name '{name}' is registered in this process",
        operator=f"{role} format '{name}'",
        kept="the job's state is unchanged",
        do=f"import the module that defines it, and call spark_ext.register(spark, The{role.title()}Class)",
    )
