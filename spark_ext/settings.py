"""Settings of a job: read from `conf/job.yaml`, overridden by arguments of `Job`.

The comments of `conf/job.yaml` and the table in docs/job.md are generated from this file by `python -m tools.pages`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from spark_ext.errors import SparkExtError, refused
from spark_ext.model.restarts import RestartPolicy
from spark_ext.options import Bytes, Milliseconds, Options, unknown

_FOREIGN: Final[Mapping[str, str]] = {  # what stands for settings of Spark's queries and of Flink's jobs
    "checkpointlocation": "remove it: checkpoints are in the state directory, the argument 'state' of Job",
    "parallelism": "set the option 'readers' of sources, and Spark's 'spark.sql.shuffle.partitions'",
    "processingtime": "interval",
    "restart_strategy": "restart_attempts",
    "trigger": "interval",
}


VARIABLES: Final = frozenset(
    {"TOKEN", "TRACEBACK", "FAILPOINTS", "FAILPOINTS_ONCE", "DRIVER_PID", "ERROR_MARK", "KIT_STATES", "NOTES_ENDS"}
    | {"PARALLELISM", "REGISTRY"}
)
"""What is read of the environment, each name behind `SPARK_EXT_`."""


class JobSettings(BaseModel):
    """Settings of a job; durations in ms, or as text such as `"90 s"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    interval: Milliseconds = 0
    """Minimum time between the starts of two data epochs of a query; 0 means as fast as possible. The end of input is
    not delayed."""
    target_epoch: Milliseconds | None = None
    """Target duration of an epoch: each source adapts the number of rows that it reads, within its own limits. None
    means no target."""
    checkpoint_interval: Milliseconds = 10_000
    """How often a consistent cut of the job is recorded in the ledger."""
    checkpoint_timeout: Milliseconds = 600_000
    """Maximum duration of an aligned checkpoint. After that it is aborted."""
    aligned_timeout: Milliseconds | None = None
    """Time after which an aligned checkpoint is completed as an unaligned one; 0 makes it unaligned from the beginning.
    None means that it stays aligned."""
    tolerable_failed_checkpoints: int | None = Field(default=None, ge=0)
    """Maximum number of consecutive failed aligned checkpoints before the job fails. None means no limit."""
    retained_checkpoints: int = Field(default=0, ge=0)
    """How many of the newest checkpoints of the whole job are kept to restore it from, each as a folder in
    `checkpoints` of the state directory, mostly of hard links."""
    savepoint_roots: tuple[str, ...] = ()
    """Folders below which a savepoint requested over HTTP may be written. Default: the folder that contains the state
    directory."""
    restart_attempts: int = Field(default=3, ge=0)
    """Maximum number of consecutive restarts of a query without a committed epoch; 0 means no restarts."""
    restart_backoff: Milliseconds = 100
    """Delay before the first restart. Each further delay is four times as long, up to 30 s."""
    outage_patience: Milliseconds = 300_000
    """How long restarts continue, regardless of their number, while an external server or disk is unavailable
    (`STORAGE`, `COMMIT`, `PREPARED_LOST`), and how long the job retries to read its state directory. 0 treats an outage
    like other failures."""
    finalization_timeout: Milliseconds = 600_000
    """How long the final checkpoint waits for operators that require finalization, and before that how long further
    epochs run while timers fire."""
    start_timeout: Milliseconds = 600_000
    """Maximum duration of each step of a start: stopping queries of an older start in the same session, claims of
    targets, the operators' `open`, and Spark's start of the queries. After that the start is refused."""
    stop_timeout: Milliseconds = 60_000
    """How long `stop` waits for a query to end. After that the query is marked CANCELED."""
    maintenance_interval: Milliseconds = 60_000
    """How often the ledger is compacted and cleaned."""
    heartbeat: Milliseconds = 5_000
    """How often the driver records that it is alive, in a small file in the state directory. This is how precisely the
    end of a killed driver is known. 0 means never."""
    monitor_interval: Milliseconds = 500
    """How often Spark is asked what a query is doing that has just been started, or whose epoch is late. 0 means never:
    execution states then only follow the life cycle, and stalls are not detected."""
    stall_after: Milliseconds | None = None
    """A query without progress for this time is stalled. None means twice its usual epoch, but at least 5 s, and 60 s
    before the first epoch. Needs `monitor_interval`."""
    slow_factor: float = Field(default=20.0, ge=0)
    """Record an epoch as slow if it takes longer than 30 s and than `slow_factor` times its expected duration, even if
    it makes progress. 0 means never. Needs `monitor_interval`."""
    on_stall: Literal["report", "fail"] = "report"
    """What to do about a stall: `report` records an incident; `fail` also fails the query, and with it the job, with
    the error `STALLED`."""
    on_damage: Literal["stop", "restore"] = "stop"
    """What `run` does when state or a checkpoint is damaged: `stop` ends the job with the error; `restore` restores it
    from its newest retained checkpoint and starts it again. `restore` needs `retained_checkpoints` and
    `checkpoint_interval`."""
    dumps: Literal["off", "stacks", "heap"] = "off"
    """What to dump when a query stalls or lacks memory or another resource: nothing (`off`), the `stacks` of all
    processes, or also the `heap` of the driver's JVM, which pauses meanwhile. Secrets in the heap are not masked."""
    dumps_kept: int = Field(default=5, ge=1)
    """How many dumps are kept, in `dumps` of the state directory. A new dump replaces the oldest."""
    dumps_size: Bytes = Field(default=4 << 30, ge=1 << 20)
    """Maximum size of all dumps together, in bytes. A heap that may exceed it is not written."""
    failures: str | None = None
    """Path of a file with failure rules and decisions of your own, which take precedence over those of
    `conf/failures.yaml`."""
    incidents: str | None = None
    """Path of a file with incident types, listeners and alert rules of your own, in addition to
    `conf/incidents.yaml`."""
    epoch_parts: bool = False
    """Divide the time of epochs into planning, reading, user code, state and commit. Spark is asked once a second."""
    metrics: bool = False
    """Count what the job does, for the route `/metrics` of `job.serve()`. `metrics_port` and `opentelemetry` include
    this setting."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    """Port on which the driver serves `/metrics` to Prometheus, without a token; jobs of one driver may share it. 0
    means none."""
    metrics_host: str = "127.0.0.1"
    """Address that `metrics_port` is bound to. Any address other than loopback makes the metrics readable for everyone
    who can reach it."""
    opentelemetry: bool = False
    """Export metrics and spans to OpenTelemetry, as configured by the `OTEL_...` environment variables or the process's
    own providers."""
    latency: Literal["off", "latest", "histogram"] = "off"
    """Measure the time from each source to the commits of each query with markers: `off` means never, `latest` keeps
    the newest value, `histogram` percentiles and a histogram as well."""
    latency_interval: Milliseconds = 1_000
    """Minimum time between two markers of a source; 0 means one in each epoch that reads rows of the source."""
    lag_interval: Milliseconds = 5_000
    """Maximum age of a source's lag before the source is asked again, also while no epoch runs. 0 means that it is
    asked whenever an epoch is planned."""
    exchange_kind: str = "arrow"
    """How exchanges are stored that name no kind: `arrow`, `delta`, `kafka`, or a kind of another package. One that
    exists keeps its kind."""
    exchange_options: Mapping[str, Any] = Field(default_factory=dict)
    """Options of `exchange_kind`. They are stored with each exchange; a secret is named as `env:NAME`, `file:PATH` or
    `${NAME}`."""
    storage_options: Mapping[str, str] = Field(default_factory=dict, repr=False)
    """Options of the object stores that the job uses, in delta-rs's names, for all processes of its session. They are
    never shown or stored. Options not given here are read from the environment (`AWS_...`)."""

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
        """Whether metrics are collected."""
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
            what, who, do = f"setting '{name}': {first['msg']}", f"job '{job}'", f"correct the value of '{name}'"
            if first["type"] == "extra_forbidden":
                what, who, do = unknown("setting", name, cls.model_fields, _FOREIGN, who)
            raise refused(what, who, do, kept="nothing was started") from None


def refuse_unread(conf: Iterable[str], environment: Iterable[str], who: str) -> None:
    """Refuse what looks like a setting of spark-ext and is read nowhere: in a session's settings, or the environment.

    Names of variables that are like nothing here may be the user's own.
    """
    for key in conf:
        parts = key.removeprefix("spark.").split(".")
        ours = any(re.sub("[_-]", "", part).lower() == "sparkext" for part in parts)
        if ours or key.removeprefix("spark.") in JobSettings.model_fields:
            raise _unread(f"setting '{key}' of the session", parts[-1], JobSettings.model_fields, who)
    for variable in environment:
        name = variable.removeprefix("SPARK_EXT_")
        if name in (variable, *VARIABLES):
            continue
        if difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.8):
            raise _unread(f"environment variable {variable}", name, VARIABLES, who)
        if difflib.get_close_matches(name.lower(), JobSettings.model_fields, n=1, cutoff=0.85):
            raise _unread(f"environment variable {variable}", name, JobSettings.model_fields, who)


def _unread(what: str, name: str, known: Iterable[str], who: str) -> SparkExtError:
    if known is VARIABLES:
        near = difflib.get_close_matches(name, known, n=1)
        return refused(f"nothing reads the {what}; did you mean SPARK_EXT_{near[0]}?", who, "rename it, or unset it")
    near = difflib.get_close_matches(re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower(), known, n=1)
    hint = f"; did you mean Job(..., {near[0]}=...)?" if near else ""
    return refused(f"nothing reads the {what}{hint}", who, "remove it: settings of a job are arguments of Job")
