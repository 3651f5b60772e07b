"""Compaction of a table's files behind the epochs, in a background thread of the committing process.

A compaction is a commit by delta-rs with `dataChange=false`, by a handle of its own and without a number of any sink:
it passes appends, and they pass it. If it and a merge touch the same files, Delta refuses the later one. When the next
is due is read from the table's history alone.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError

from spark_ext.delta.fenced_log import NO_HOOKS, properties
from spark_ext.delta.merge import check_partitions, statistics
from spark_ext.delta.restored import HISTORY
from spark_ext.errors import refused
from spark_ext.failpoints import FailPoint, reach
from spark_ext.masking import logger
from spark_ext.schemas.parquet_types import from_delta

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_ext.storage import Location

_LOG = logger(__name__)

_HOUR: Final = 3_600_000

_TARGET: Final = 100 * 1024**2  # Size of the files that delta-rs makes when nothing else is said, bytes
_FEW: Final = 4  # Small files in a partition below which it is not sorted again: sorting rewrites all of the partition
_VACUUM_EVERY: Final = 24 * _HOUR  # Time between two vacuums, ms: each lists all of the table's files
_RETENTION: Final = 7 * 24 * _HOUR  # Delta's own retention time for removed files, ms
_COMMIT_EVERY: Final = timedelta(seconds=20)  # Time after which a long compaction commits what it has


@dataclass(frozen=True)
class Optimize:
    """What is done behind the epochs, and how often. Times in ms."""

    every: int
    target_size: int | None = None
    z_order_by: tuple[str, ...] = ()
    vacuum_after: int | None = None

    def check(
        self, schema: StructType, partition_by: Sequence[str], configuration: Mapping[str, str], who: str
    ) -> None:
        """Refuse what would fail behind the epochs, where nobody waits for it."""
        from spark_ext.schemas.parquet_types import SIMPLE

        check_partitions(schema, partition_by, who)
        kinds = {field.name: field.dataType for field in schema.fields}
        for name in self.z_order_by:
            if name in partition_by:
                what = "is a partition column, by which the files are divided already"
            elif name not in kinds:
                what = f"is not a column of the query; it has: {', '.join(kinds)}"
            elif not isinstance(kinds[name], SIMPLE):
                what = f"has the type {kinds[name].simpleString()}, which has no order"
            else:
                continue
            raise refused(f"option 'z_order_by': '{name}' {what}", who, "correct the option 'z_order_by'")
        least = retention(configuration)
        if self.vacuum_after is not None and self.vacuum_after < least:
            raise refused(
                f"option 'vacuum_after' is {self.vacuum_after // _HOUR} hours, and the table keeps removed files for "
                f"{least // _HOUR} hours (delta.deletedFileRetentionDuration): readers and savepoints may need them",
                who,
                "raise it, or set the table property to the time for which removed files are needed",
            )


_UNITS: Final = {"second": 1000, "minute": 60_000, "hour": _HOUR, "day": 24 * _HOUR, "week": 7 * 24 * _HOUR}


def retention(configuration: Mapping[str, str]) -> int:
    """How long a table keeps removed files at least, ms, by its properties."""
    text = configuration.get("delta.deletedFileRetentionDuration", "")
    found = re.fullmatch(r"\s*(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?\s*", text, re.IGNORECASE)
    return int(found[1]) * _UNITS[found[2].lower()] if found else _RETENTION


_due: dict[str, float] = {}  # When to look at the next compaction, by the table's path, s of `time.monotonic`
_running: dict[str, threading.Thread] = {}


def optimize_if_due(location: Location, plan: Optimize) -> threading.Thread | None:
    """Start a compaction in a thread if one is due and none is running here. Costs a comparison otherwise."""
    running = _running.get(location.uri)
    if time.monotonic() < _due.get(location.uri, 0) or (running is not None and running.is_alive()):
        return None
    thread = threading.Thread(target=_behind, args=(location, plan), name="spark-ext-delta-optimize", daemon=True)
    _running[location.uri] = thread
    thread.start()
    return thread


def _behind(location: Location, plan: Optimize) -> None:
    begun = time.monotonic()
    try:
        wait = run(location, plan, time.time_ns() // 1_000_000) / 1000
    except CommitFailedError:
        # An epoch was faster. Not at once again: a compaction that never succeeds must not take all of the processor.
        wait = time.monotonic() - begun
        _LOG.info("%s was not compacted: an epoch has changed its files in the meantime", location.uri)
    except Exception:
        wait = plan.every / 1000
        _LOG.warning("%s could not be compacted", location.uri, exc_info=True)
    _due[location.uri] = time.monotonic() + wait


def run(location: Location, plan: Optimize, now: int) -> int:
    """Compact the table and delete what has become old, so far as due; returns the time until it is due again, ms."""
    table = DeltaTable(location.uri, storage_options=location.options)
    history = table.history(HISTORY)
    since = now - _newest(history, "OPTIMIZE")
    if since < plan.every:
        return plan.every - since
    reach(FailPoint.DELTA_BEFORE_OPTIMIZE)
    if plan.z_order_by:
        _sort(table, plan)
    else:
        table.optimize.compact(target_size=plan.target_size, **_commits(table))
    reach(FailPoint.DELTA_OPTIMIZED)
    if plan.vacuum_after is not None and now - _newest(history, "VACUUM END") >= _VACUUM_EVERY:
        table.vacuum(
            retention_hours=-(-plan.vacuum_after // _HOUR),
            dry_run=False,
            # Files that were never committed, as killed merges leave them; for delta-rs also vectors of live files.
            full="deletionVectors" not in (table.protocol().reader_features or ()),
            commit_properties=properties(),
            post_commithook_properties=NO_HOOKS,
        )
    return plan.every


def _newest(history: Iterable[Mapping[str, Any]], operation: str) -> int:
    """Time of the newest commit of a kind, ms, or 0."""
    return max((int(entry["timestamp"]) for entry in history if entry.get("operation") == operation), default=0)


def _writer(table: DeltaTable) -> WriterProperties | None:
    wanted = statistics(from_delta(table.schema().to_json()))
    if not wanted:
        return None
    # The rest is what delta-rs does by itself as long as it is given no properties.
    return WriterProperties(compression="ZSTD", compression_level=4, statistics_truncate_length=64, **wanted)


def _commits(table: DeltaTable) -> dict[str, Any]:
    return {
        "writer_properties": _writer(table),
        # The epochs need the processor more.
        "max_concurrent_tasks": 1,
        "min_commit_interval": _COMMIT_EVERY,
        "commit_properties": properties(),
        "post_commithook_properties": NO_HOOKS,
    }


def _sort(table: DeltaTable, plan: Optimize) -> None:
    """Sort the partitions that have got small files; all of the table where values are not plain text in a filter."""
    partition_by = list(table.metadata().partition_columns)
    size = plan.target_size or int(table.metadata().configuration.get("delta.targetFileSize") or _TARGET)
    crowded = crowded_partitions(_files(table, partition_by), size)
    filters = [_filters(partition_by, values) for values in crowded]
    if any(one is None for one in filters):
        filters = [None]
    commits = _commits(table)
    for one in filters:
        table.optimize.z_order(
            list(plan.z_order_by), partition_filters=one or None, target_size=plan.target_size, **commits
        )


def _files(table: DeltaTable, partition_by: Sequence[str]) -> list[tuple[tuple[Any, ...], int]]:
    actions = pa.table(table.get_add_actions(flatten=True))
    values = [actions.column(f"partition.{name}").to_pylist() for name in partition_by]
    sizes = actions.column("size_bytes").to_pylist()
    return [(tuple(column[row] for column in values), size) for row, size in enumerate(sizes)]


def crowded_partitions(files: Iterable[tuple[tuple[Any, ...], int]], target: int) -> list[tuple[Any, ...]]:
    """The partitions with enough files of less than half of `target`, the size wanted, bytes."""
    small = Counter(values for values, size in files if 2 * size < target)
    return [values for values, count in small.items() if count >= _FEW]


def _filters(names: Sequence[str], values: Sequence[Any]) -> list[tuple[str, str, str]] | None:
    """Conditions that delta-rs understands; None for a value whose spelling in the log is unknown."""
    spelled = []
    for name, value in zip(names, values, strict=True):
        if value is None or isinstance(value, str):
            spelled.append((name, "=", value or ""))  # empty: null
        elif isinstance(value, (int, date)) and type(value) in (int, date):
            spelled.append((name, "=", str(value)))
        else:
            return None
    return spelled
