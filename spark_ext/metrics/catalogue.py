"""The metrics of a job: their names, types, units and labels. Pure; exporters and pages derive all they say from it.

Names follow Prometheus: `spark_ext_` first, the unit in the plural, `_total` for a counter, `_info` for a metric whose
labels are its content. Labels are bounded: nothing that grows with a job's life (a channel, epoch, event) is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import add
from typing import Any, Final

from spark_ext.failures.labels import UNKNOWN, FailureType, Origin
from spark_ext.ledger.kinds import CheckpointKind, CheckpointMode, Kind
from spark_ext.model.epoch_parts import PARTS
from spark_ext.model.lifecycle import State
from spark_ext.spark.watching.query_events import STAGES
from spark_ext.views.snapshot import GATEWAY_STATES
from spark_ext.views.timeline import DOWN, STOPPED

OTHER: Final = "_other"  # the value of a label once there are too many
NONE: Final = UNKNOWN  # the class of downtime for which no incident was recorded, and of failures without a type


class MetricKind(Kind):
    """What a value of a metric is."""

    COUNTER = "counter"  # only ever grows while the driver runs
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Label:
    """A label."""

    name: str
    help: str  # what its values are
    values: tuple[str, ...] = ()  # all possible values; none: they are the user's, and their number is limited

    @property
    def open(self) -> bool:
        """Whether its values are the user's."""
        return not self.values


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric."""

    name: str
    kind: MetricKind
    help: str  # one sentence without a full stop at its end
    labels: tuple[str, ...] = ("job",)  # names of its labels, in order
    unit: str = ""  # `seconds`, `rows` or another plural; empty: a number without a unit
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram, ascending, without infinity
    fold: Callable[[float, float], float] = add  # of two gauges whose labels were replaced by `_other`

    @property
    def base(self) -> str:
        """The name without `_total`, as OpenMetrics and the client library have it."""
        return self.name.removesuffix("_total") if self.kind is MetricKind.COUNTER else self.name

    @property
    def otel(self) -> str:
        """Its name in OpenTelemetry: without `_total` and `_seconds`, which an exporter to Prometheus adds again."""
        return f"spark_ext.{self.base.removeprefix('spark_ext_').removesuffix('_seconds')}"

    @property
    def otel_unit(self) -> str:
        """Its unit in UCUM, as OpenTelemetry wants it."""
        return {"": "", "seconds": "s"}.get(self.unit, f"{{{self.unit}}}")


LABELS: Final = {  # all labels, by name
    label.name: label
    for label in (
        Label("job", "name of the job"),
        Label("query", "uid of the query; empty: the whole job"),
        Label("source", "uid of the source"),
        Label("rule", "name of the rule"),
        Label("exchange", "name of the exchange"),
        Label("inbox", "name of the inbox"),
        Label("gateway_state", "what gateways of the inbox do", GATEWAY_STATES),
        Label(
            "status",
            "status of the HTTP answer",
            ("400", "401", "403", "404", "405", "408", "413", "415", "422", "429", "500", "503"),
        ),
        Label("quantile", "share of the requests", ("0.5", "0.99")),
        Label(
            "state",
            "state of the query or job; of the job without a driver `DOWN` or `STOPPED`",
            (*(state.value for state in State), DOWN, STOPPED),
        ),
        Label("stage", "part of an epoch", tuple(STAGES)),
        Label("part", "what was done in an epoch", PARTS),
        Label("kind", "what the checkpoint is for", tuple(kind.value for kind in CheckpointKind)),
        Label(
            "mode",
            "how a checkpoint of the whole job was taken; empty for that of a query",
            ("", *(mode.value for mode in CheckpointMode)),
        ),
        Label("result", "how a checkpoint has ended", ("completed", "failed")),
        Label("type", "kind of the incident, as in `incidents`"),
        Label("severity", "severity of the incident", ("INFO", "WARNING", "ERROR", "CRITICAL")),
        Label(
            "class",
            "type of the failure that is to blame, or one of the user's own",
            (*(kind.value for kind in FailureType), NONE),
        ),
        Label("origin", "whose code failed", (*(origin.value for origin in Origin), NONE)),
        Label("name", "name that a listener of yours has given"),
        Label("label", "what a listener of yours has added to the name"),
        Label("version", "version of spark-ext"),
        Label("spark_app_id", "Spark's id of the application"),
        Label("query_id", "Spark's id of the query, which stays with its checkpoint"),
        Label("run_id", "Spark's id of the query's present run; empty before its first epoch"),
        Label("query_name", "name under which Spark shows the query, also in its own metrics"),
    )
}

_QUERY: Final = ("job", "query")
_SOURCE: Final = ("job", "query", "source")
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LONG: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0)


def _counter(name: str, text: str, labels: tuple[str, ...] = _QUERY, unit: str = "") -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, help=text, labels=labels, unit=unit)


def _gauge(name: str, text: str, labels: tuple[str, ...] = _QUERY, unit: str = "", **fold: Any) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, help=text, labels=labels, unit=unit, **fold)


def _histogram(name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Metric:
    return Metric(name=name, kind=MetricKind.HISTOGRAM, help=text, labels=labels, unit="seconds", buckets=buckets)


INFO: Final = _gauge("spark_ext_info", "1, for each run of a job in this driver", ("job", "version", "spark_app_id"))
QUERY_INFO: Final = _gauge(
    "spark_ext_query_info",
    "1, for each query that has been started; links Spark's own metrics and logs to it",
    ("job", "query", "query_id", "run_id", "query_name", "spark_app_id"),
    fold=max,
)
INCARNATION: Final = _gauge("spark_ext_incarnation", "Number of this start of the job, from 1", ("job",), fold=max)
START_TIME: Final = _gauge(
    "spark_ext_start_timestamp_seconds", "When this start of the job was made, since 1970 UTC", ("job",), "seconds",
    fold=max,
)  # fmt: skip
JOB_STATE: Final = _gauge("spark_ext_job_state", "1 for the state that the job is in, 0 for others", ("job", "state"))
QUERY_STATE: Final = _gauge(
    "spark_ext_query_state", "1 for the state that the query is in, 0 for others", (*_QUERY, "state")
)
EPOCHS: Final = _counter("spark_ext_epochs_total", "Epochs that were committed")
INPUT_ROWS: Final = _counter("spark_ext_input_rows_total", "Rows read by committed epochs", unit="rows")
BAD_ROWS: Final = _counter(
    "spark_ext_bad_rows_total", "Rows that do not parse or fit, and were moved into the table of bad rows",
    ("job", "query", "source"), "rows",
)  # fmt: skip
RULE_FAILURES: Final = _counter(
    "spark_ext_rule_failed_rows_total", "Rows that fail a rule of `expect`, whatever has become of them",
    ("job", "query", "rule"), "rows",
)  # fmt: skip
LATE_ROWS: Final = _counter(
    "spark_ext_late_rows_total", "Rows that were dropped because the watermark had passed them, at least",
    unit="rows",
)  # fmt: skip
EPOCH_STAGES: Final = _counter(
    "spark_ext_epoch_stage_seconds_total",
    "Time that epochs have spent in planning, in execution with the sink's commit, and in Spark's own log",
    ("job", "query", "stage"),
    "seconds",
)
EPOCH_PARTS: Final = _counter(
    "spark_ext_epoch_part_seconds_total",
    "The same time by what was done, in proportion to what the tasks measured; needs the setting `epoch_parts`",
    ("job", "query", "part"),
    "seconds",
)
EPOCH_DURATION: Final = _histogram(
    "spark_ext_epoch_duration_seconds",
    "Duration of a committed epoch, planning and commit included; epochs for which Spark has reported none are missing",
    _QUERY,
    _SECONDS,
)
LAST_EPOCH: Final = _gauge("spark_ext_last_epoch", "Number of the newest committed epoch", fold=max)
LAST_COMMIT: Final = _gauge(
    "spark_ext_last_commit_timestamp_seconds", "When the newest epoch was committed, since 1970 UTC", unit="seconds",
    fold=min,
)  # fmt: skip
WATERMARK_DELAY: Final = _gauge(
    "spark_ext_watermark_delay_seconds",
    "Delay of the watermark behind the clock; 0 at the end of input, missing without a watermark",
    unit="seconds",
    fold=max,
)
LAG_ROWS: Final = _gauge(
    "spark_ext_lag_rows", "Rows that queries of the job have written to exchanges and others have still to read",
    ("job",), "rows",
)  # fmt: skip
EXCHANGE_ROWS: Final = _gauge(
    "spark_ext_exchange_rows", "Rows of the exchange that its slowest consumer has not committed",
    ("job", "exchange"), "rows",
)  # fmt: skip
EXCHANGE_BYTES: Final = _gauge(
    "spark_ext_exchange_bytes", "The size of these rows as they are stored", ("job", "exchange"), "bytes"
)
EXCHANGE_STORED: Final = _gauge(
    "spark_ext_exchange_stored_bytes",
    "Bytes that the exchange has on disk, with rows that all have committed and that are kept",
    ("job", "exchange"), "bytes",
)  # fmt: skip
_INBOX: Final = ("job", "inbox")
INBOX_GATEWAYS: Final = _gauge(
    "spark_ext_inbox_gateways",
    "Gateways of the inbox in each state, as of some seconds ago",
    (*_INBOX, "gateway_state"),
)
INBOX_ACCEPTED: Final = _counter(
    "spark_ext_inbox_accepted_events_total", "Events that gateways of the inbox have taken, since it was made",
    _INBOX, "events",
)  # fmt: skip
INBOX_ACKNOWLEDGED: Final = _counter(
    "spark_ext_inbox_acknowledged_events_total", "Events of the inbox that are kept, as it promises, since it was made",
    _INBOX, "events",
)  # fmt: skip
INBOX_REPEATS: Final = _counter(
    "spark_ext_inbox_repeated_events_total", "Events that were left out because they had been delivered before",
    _INBOX, "events",
)  # fmt: skip
INBOX_CONFLICTS: Final = _counter(
    "spark_ext_inbox_conflicting_events_total",
    "Events that were left out because their identity is that of another event; they are bad rows",
    _INBOX,
    "events",
)
INBOX_OLD: Final = _counter(
    "spark_ext_inbox_old_events_total", "Events that are older than the window, by their own time: repeats may pass",
    _INBOX, "events",
)  # fmt: skip
INBOX_REJECTED: Final = _counter(
    "spark_ext_inbox_rejected_requests_total", "Requests that gateways of the inbox have answered with a refusal",
    (*_INBOX, "status"), "requests",
)  # fmt: skip
INBOX_ACKNOWLEDGEMENT: Final = _gauge(
    "spark_ext_inbox_acknowledgement_seconds",
    "Within which time requests of the last minute were acknowledged, rounded up to a power of two of ms; missing if "
    "none was",
    (*_INBOX, "quantile"), "seconds", fold=max,
)  # fmt: skip
INBOX_HELD: Final = _gauge(
    "spark_ext_inbox_held_bytes", "Bytes that gateways of the inbox hold of events that no job has read and committed",
    _INBOX, "bytes",
)  # fmt: skip
INBOX_LIMIT: Final = _gauge("spark_ext_inbox_limit_bytes", "Bytes that they may hold", _INBOX, "bytes")
INBOX_OLDEST: Final = _gauge(
    "spark_ext_inbox_oldest_event_age_seconds",
    "Age of the oldest event that gateways of the inbox hold; missing if they hold none",
    _INBOX,
    "seconds",
    fold=max,
)
HELD_BACK: Final = _counter(
    "spark_ext_held_back_seconds_total",
    "Time in which the query planned no epoch because the exchange that it writes was full",
    unit="seconds",
)
SOURCE_LAG: Final = _gauge(
    "spark_ext_source_lag_rows",
    "Rows that are in no epoch yet, as last reported by the source; missing if unknown",
    _SOURCE, "rows",
)  # fmt: skip
SOURCE_LAG_AGE: Final = _gauge(
    "spark_ext_source_lag_age_seconds",
    "How long ago the lag of the source was as `spark_ext_source_lag_rows` has it; missing where that is",
    _SOURCE,
    "seconds",
    fold=max,
)
NEWEST_ROW_AGE: Final = _gauge(
    "spark_ext_newest_row_age_seconds",
    "How long ago the newest row was that the query has read, by its event time; missing without a watermark",
    unit="seconds",
    fold=max,
)
LATENCY: Final = _histogram(
    "spark_ext_latency_seconds",
    "Time from the moment at which a source took up rows to their commit by the query, of sampled epochs",
    _SOURCE,
    _LONG,
)
LATEST_LATENCY: Final = _gauge(
    "spark_ext_latest_latency_seconds",
    "The latency from the source to the query that was measured last, by the slowest way between the two",
    _SOURCE,
    "seconds",
    fold=max,
)
STATE_ROWS: Final = _gauge("spark_ext_state_rows", "Rows in the state stores of the query", unit="rows")
CHANNELS_FINISHED: Final = _counter("spark_ext_channels_finished_total", "Channels that have finished", _SOURCE)
CHANNELS_RUNNING: Final = _gauge("spark_ext_channels_running", "Channels that are being read", _SOURCE)
CHECKPOINTS: Final = _counter(
    "spark_ext_checkpoints_total",
    "Checkpoints and savepoints that have ended; of the final checkpoint of a query, that it is recorded",
    ("job", "kind", "mode", "result"),
)
CHECKPOINT_DURATION: Final = _histogram(
    "spark_ext_checkpoint_duration_seconds",
    "Time from the trigger of a completed checkpoint of the whole job to its completion",
    ("job", "kind", "mode"),
    _LONG,
)
RESTARTS: Final = _counter(
    "spark_ext_restarts_total", "Times that a query began to restart, after a failure or a run without an epoch"
)
RECOVERY_DURATION: Final = _histogram(
    "spark_ext_recovery_duration_seconds",
    "Time from a failure, or from the loss of the driver, to the commit of the next epoch",
    (*_QUERY, "class"),
    _LONG,
)
INCIDENTS: Final = _counter("spark_ext_incidents_total", "Rows of the table `incidents`", (*_QUERY, "type", "severity"))
FAILURES: Final = _counter(
    "spark_ext_failures_total", "Incidents of type `failure`, by what failed and whose it was",
    (*_QUERY, "class", "origin"),
)  # fmt: skip
DOWNTIME: Final = _counter(
    "spark_ext_downtime_seconds_total",
    "Time in which the job was down, since its first start, by the class of the incident that is to blame",
    ("job", "class"),
    "seconds",
)
UPTIME: Final = _counter(
    "spark_ext_uptime_seconds_total",
    "Time in which the job did what it should (RUNNING, PAUSED or FINISHING, without a stall), since its first start",
    ("job",),
    "seconds",
)
STATE_SECONDS: Final = _counter(
    "spark_ext_state_seconds_total",
    "Time in each state since the first start, over all drivers; those of the job add up to the wall time",
    (*_QUERY, "state"),
    "seconds",
)
STATE_DURATION: Final = _histogram(
    "spark_ext_state_duration_seconds",
    "How long each stay in SCHEDULING, DEPLOYING or RESTORING has lasted, in this driver",
    (*_QUERY, "state"),
    _LONG,
)
LISTENER_COUNTER: Final = _counter(
    "spark_ext_listener_counter_total", "What listeners of yours count, by `context.count`", ("job", "name", "label")
)
LISTENER_GAUGE: Final = _gauge(
    "spark_ext_listener_gauge", "What listeners of yours report, by `context.gauge`", ("job", "name", "label"), fold=max
)
LEDGER_WAITING: Final = _gauge(
    "spark_ext_ledger_waiting_rows", "Rows of the ledger that wait to be written", ("job",), "rows"
)
DROPPED: Final = _counter(
    "spark_ext_telemetry_dropped_total", "Rows that the export to OpenTelemetry did not keep up with", ("job",)
)

CATALOGUE: Final = (  # in the order in which they are shown
    INFO, INCARNATION, START_TIME, JOB_STATE, QUERY_INFO, QUERY_STATE,
    EPOCHS, INPUT_ROWS, BAD_ROWS, RULE_FAILURES, LATE_ROWS, EPOCH_DURATION, EPOCH_STAGES, EPOCH_PARTS, LAST_EPOCH,
    LAST_COMMIT,
    LATENCY, LATEST_LATENCY, WATERMARK_DELAY, NEWEST_ROW_AGE, LAG_ROWS,
    EXCHANGE_ROWS, EXCHANGE_BYTES, EXCHANGE_STORED, HELD_BACK,
    INBOX_GATEWAYS, INBOX_ACCEPTED, INBOX_ACKNOWLEDGED, INBOX_REPEATS, INBOX_CONFLICTS, INBOX_OLD, INBOX_REJECTED,
    INBOX_ACKNOWLEDGEMENT,
    INBOX_HELD, INBOX_LIMIT, INBOX_OLDEST, SOURCE_LAG,
    SOURCE_LAG_AGE, STATE_ROWS, CHANNELS_FINISHED, CHANNELS_RUNNING,
    CHECKPOINTS, CHECKPOINT_DURATION,
    INCIDENTS, FAILURES, RESTARTS, RECOVERY_DURATION, DOWNTIME,
    UPTIME, STATE_SECONDS, STATE_DURATION, LISTENER_COUNTER, LISTENER_GAUGE,
    LEDGER_WAITING, DROPPED,
)  # fmt: skip
