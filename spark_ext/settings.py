"""Settings of a job: read from `conf/job.yaml`, overridden by arguments of `Job`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from spark_ext.errors import refused
from spark_ext.model.restarts import RestartPolicy
from spark_ext.options import Bytes, Milliseconds, Options


class JobSettings(BaseModel):
    """Settings of a job; durations in ms, or as text such as `"90 s"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    interval: Milliseconds = 0
    """Minimum time between the starts of two data epochs of a query; 0: none. The end of input never waits."""
    target_epoch: Milliseconds | None = None
    """How long an epoch is to take: sources adapt how many rows they read in one. None: as their limits have it."""
    checkpoint_interval: Milliseconds = 10_000
    """How often a consistent checkpoint of the job is recorded in the ledger."""
    checkpoint_timeout: Milliseconds = 600_000
    """How long an aligned checkpoint may take; it is then aborted."""
    aligned_timeout: Milliseconds | None = None
    """How long an aligned checkpoint may take before it is completed as an unaligned one; 0: it is one from the
    beginning; None: it stays aligned."""
    tolerable_failed_checkpoints: int | None = Field(default=None, ge=0)
    """How many aligned checkpoints in a row may fail before the job fails; None: any number."""
    retained_checkpoints: int = Field(default=0, ge=0)
    """How many of the newest checkpoints of the whole job are kept so that it can be restored from them."""
    savepoint_roots: tuple[str, ...] = ()
    """Folders below which a savepoint may be written that is asked for over HTTP; none: the one that contains the state
    directory."""
    restart_attempts: int = Field(default=3, ge=0)
    """Maximum consecutive restarts of a query without a committed epoch."""
    restart_backoff: Milliseconds = 100
    """Delay before the first restart; four times as long before each further one, up to 30 s."""
    outage_patience: Milliseconds = 300_000
    """How long restarts continue beyond `restart_attempts` while an external server or disk is unavailable.

    Also how long the job itself tries to read a state directory that cannot be read.
    """
    finalization_timeout: Milliseconds = 600_000
    """How long the final checkpoint waits for operators that require finalization."""
    start_timeout: Milliseconds = 600_000
    """How long each step of a start may take: older queries that stop, claims of targets, `open`, and Spark."""
    stop_timeout: Milliseconds = 60_000
    """How long `stop` waits for a query to end; it is then given up, as CANCELED."""
    maintenance_interval: Milliseconds = 60_000
    """How often the ledger is compacted and cleaned."""
    heartbeat: Milliseconds = 5_000
    """How often the driver records that it is alive: by so much the end of one that is killed is known; 0: never."""
    monitor_interval: Milliseconds = 500
    """How often Spark is asked what a query is doing that is late; 0: never. Execution states are then those of the
    life cycle alone, and no query is found to be stalled."""
    stall_after: Milliseconds | None = None
    """A query that makes no progress for so long is stalled; None: twice its usual epoch, 5 s at the least,
    and 60 s before the first one. Needs `monitor_interval`."""
    slow_factor: float = Field(default=20.0, ge=0)
    """An epoch that takes longer than so many times what its rows usually take, and than 30 s, is recorded as slow,
    even if it makes progress; 0: none. Needs `monitor_interval`."""
    on_stall: Literal["report", "fail"] = "report"
    """What is done about a stall: an incident is recorded, or the query, and so the job, also fails."""
    on_damage: Literal["stop", "restore"] = "stop"
    """What `run` does when state or a checkpoint is damaged: it ends, or restores the job from its newest retained
    checkpoint and starts it again. Needs `retained_checkpoints` and `checkpoint_interval`."""
    dumps: Literal["off", "stacks", "heap"] = "off"
    """What is kept of a query that stalls or lacks a resource: nothing, the stacks of all processes, or those and the
    heap of the driver's JVM."""
    dumps_kept: int = Field(default=5, ge=1)
    """How many dumps are kept; the oldest is deleted for a further one."""
    dumps_size: Bytes = Field(default=4 << 30, ge=1 << 20)
    """How large all dumps may be together, bytes."""
    failures: str | None = None
    """Path of a file of failure rules and decisions, which come before those of `conf/failures.yaml`."""
    incidents: str | None = None
    """Path of a file of types of incidents, listeners and alert rules, in addition to `conf/incidents.yaml`."""
    epoch_parts: bool = False
    """Whether the time of epochs is divided into planning, reading, user code, state and commit, by looks at what Spark
    has measured, once a second."""
    metrics: bool = False
    """Whether the job counts what it does, for `/metrics` of `job.serve()`. The next settings include it."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    """Port on which the driver serves `/metrics` to Prometheus; 0: none."""
    metrics_host: str = "127.0.0.1"
    """Address to which that is bound."""
    opentelemetry: bool = False
    """Whether metrics and spans are exported to OpenTelemetry."""
    latency: Literal["off", "latest", "histogram"] = "off"
    """Whether markers measure the time from each source to the commits of each query: the newest value, or percentiles
    and a histogram as well."""
    latency_interval: Milliseconds = 1_000
    """At most one marker of a source in so much time; 0: one in each epoch that reads rows of it."""
    lag_interval: Milliseconds = 5_000
    """How old the lag of a source may become, while an epoch runs or none does, until the source is asked again; 0: it
    is asked when an epoch is planned."""
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Of the object stores in which the job keeps things, as delta-rs names them; for all processes of the session.
    Never shown or stored. What is not here is looked for in the environment."""

    @field_validator("on_damage")
    @classmethod
    def _has_checkpoints(cls, on_damage: str, info: ValidationInfo) -> str:
        if on_damage == "restore" and not info.data.get("retained_checkpoints"):
            raise ValueError("'restore' needs a checkpoint: set retained_checkpoints to 1 or more")
        return on_damage

    @field_validator("dumps", "latency", mode="before")
    @classmethod
    def _off_in_yaml(cls, value: object) -> object:
        """The word without quotes is false in YAML."""
        return "off" if value is False else value

    @property
    def measured(self) -> bool:
        """Whether anything wants the job's metrics."""
        return self.metrics or self.metrics_port > 0 or self.opentelemetry

    @property
    def restarts(self) -> RestartPolicy:
        """The restart policy."""
        return RestartPolicy(self.restart_attempts, self.restart_backoff, outage_ms=self.outage_patience)

    @classmethod
    def of(cls, job: str, given: Mapping[str, Any]) -> JobSettings:
        """The default settings, overridden by the given ones.

        Raises:
            ConfigurationError: a setting is unknown or invalid.
        """
        Options.keep_secret(given)
        shipped = yaml.safe_load(files("spark_ext.conf").joinpath("job.yaml").read_text()) or {}
        try:
            return cls.model_validate({**shipped, **given})
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise refused(
                f"setting '{name}': {first['msg']}",
                f"job '{job}'",
                f"correct the value of '{name}'"
                if name in cls.model_fields
                else f"use one of: {', '.join(sorted(cls.model_fields))}",
                kept="nothing was started",
            ) from None
