"""What a user sets on a job: read from `conf/job.yaml`, overridden by arguments of `Job`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_ext.errors import ConfigurationError
from spark_ext.model.restarts import RestartPolicy
from spark_ext.options import Milliseconds


class JobSettings(BaseModel):
    """Settings of a job; durations in ms, or as text such as `"90 s"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    interval: Milliseconds = 0
    """Least time between the starts of two data epochs of a query; 0: none. The end of input never waits."""
    checkpoint_interval: Milliseconds = 10_000
    """How often a consistent cut of the job is recorded in the ledger."""
    restart_attempts: int = Field(default=3, ge=0)
    """Restarts of a query in a row without an epoch committed in between."""
    restart_backoff: Milliseconds = 100
    """Wait before the first restart; four times as long before each further one, up to 30 s."""
    outage_patience: Milliseconds = 300_000
    """For how long restarts go on, past `restart_attempts`, while a server or disk outside is away."""
    finalization_timeout: Milliseconds = 600_000
    """How long the final checkpoint waits for operators that require finalization."""
    stop_timeout: Milliseconds = 60_000
    """How long `stop` waits for a query to end."""
    maintenance_interval: Milliseconds = 60_000
    """How often the ledger is compacted and cleaned."""
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Object-store options of the state directory, as delta-rs names them. Never shown or stored."""

    @property
    def restarts(self) -> RestartPolicy:
        """The restart policy."""
        return RestartPolicy(self.restart_attempts, self.restart_backoff, outage_ms=self.outage_patience)

    @classmethod
    def of(cls, job: str, given: Mapping[str, Any]) -> JobSettings:
        """The shipped settings with the given ones over them.

        Raises:
            ConfigurationError: a setting is unknown or has a bad value.
        """
        shipped = yaml.safe_load(files("spark_ext.conf").joinpath("job.yaml").read_text()) or {}
        try:
            return cls.model_validate({**shipped, **given})
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise ConfigurationError(
                f"setting '{name}': {first['msg']}",
                operator=f"job '{job}'",
                kept="nothing was started",
                do=f"use one of: {', '.join(sorted(cls.model_fields))}",
            ) from None
