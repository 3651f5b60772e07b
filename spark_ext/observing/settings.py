"""The settings of an Observer: those of a job that concern watching."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_ext.errors import refused
from spark_ext.settings import JobSettings

WATCHING: Final = (
    "dumps",
    "dumps_kept",
    "dumps_size",
    "epoch_parts",
    "failures",
    "heartbeat",
    "incidents",
    "maintenance_interval",
    "metrics",
    "metrics_host",
    "metrics_port",
    "monitor_interval",
    "opentelemetry",
    "outage_patience",
    "slow_factor",
    "stall_after",
)
"""Settings that an Observer has. With any other a job decides something, which an Observer never does."""


def observer_settings(name: str, given: Mapping[str, Any]) -> JobSettings:
    """The settings of an Observer."""
    others = sorted(set(given) & set(JobSettings.model_fields) - set(WATCHING))
    if others:
        raise refused(
            f"the setting '{others[0]}' is that of a job: an Observer decides nothing",
            f"Observer '{name}'",
            f"leave it out, or use: {', '.join(WATCHING)}",
            kept="nothing was started",
        )
    unknown = sorted(set(given) - set(WATCHING))
    if unknown:
        raise refused(
            f"there is no setting '{unknown[0]}'",
            f"Observer '{name}'",
            f"use one of: {', '.join(WATCHING)}",
            kept="nothing was started",
        )
    return JobSettings.of(name, given)
