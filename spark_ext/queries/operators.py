"""Operators by format name: builds a source or sink from its options, in the driver, without a query.

The coordinator needs this for what Spark never calls: the acknowledgement of the last epoch, life-cycle hooks, and
the claim of a target. Any subclass of the two contracts that this process has defined is known by its format name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ext.errors import ConfigurationError
from spark_ext.options import Options
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sources.contract import ChannelSource


def is_source(name: str) -> bool:
    """Whether a format is a channel source."""
    return _find(ChannelSource, name) is not None


def is_sink(name: str) -> bool:
    """Whether a format is a two-phase commit sink."""
    return _find(TwoPhaseCommitSink, name) is not None


def source(name: str, options: Mapping[str, str]) -> ChannelSource:
    """Build a source.

    Raises:
        ConfigurationError: the format is unknown here, or an option is refused.
    """
    found: Any = _find(ChannelSource, name)
    if found is None:
        raise _unknown("source", name)
    built: ChannelSource = found(options)
    return built


def sink(name: str, options: Mapping[str, str]) -> TwoPhaseCommitSink:
    """Build a sink.

    Raises:
        ConfigurationError: the format is unknown here, or an option is refused.
    """
    found: Any = _find(TwoPhaseCommitSink, name)
    if found is None:
        raise _unknown("sink", name)
    built: TwoPhaseCommitSink = found(options)
    return built


def requires_finalization(name: str) -> bool:
    """Whether operators of a format have to be waited for at the end of input."""
    found: Any = _find(ChannelSource, name) or _find(TwoPhaseCommitSink, name)
    return bool(found is not None and found.requires_finalization)


def public_options(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options of a format with the values of secrets replaced by `***`; the format says which are secret."""
    found: Any = _find(ChannelSource, name) or _find(TwoPhaseCommitSink, name)
    declared: type[Options] = Options if found is None else found.options_type
    return {key: declared.shown(key.lower(), value) for key, value in options.items()}


def _find(base: Any, name: str) -> Any:
    """The class defined last wins, as with Spark's own registration."""
    for kind in reversed(base.__subclasses__()):
        deeper = _find(kind, name)
        if deeper is not None:
            return deeper
        if kind.name() == name:
            return kind
    return None


def _unknown(role: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"no {role} with the format name '{name}' is known in this process",
        operator=f"{role} format '{name}'",
        kept="the job's state is as it was",
        do=f"import the module that defines it, and call spark_ext.register(spark, The{role.title()}Class)",
    )
