"""Long histories, written into the state of a job that has run for a moment and stands still: as of weeks of work.

Rows are those of the ledger's own classes, written by its tables; what Spark's log says is changed to fit them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from benchmarks._spark import checkpoint_of
from spark_ext.control import stamps
from spark_ext.delta.fenced_log import NO_HOOKS
from spark_ext.exchange.arrow.log import ArrowLog
from spark_ext.exchange.entries import Entry, LogState
from spark_ext.ledger import Ledger, schema
from spark_ext.ledger.columns import to_arrow, to_json
from spark_ext.ledger.maintenance import compact
from spark_ext.ledger.schema import Row
from spark_ext.ledger.view import event_of
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog, with_offsets
from spark_ext.storage import LocalFolder

QUERY: Final = "q"
SOURCE: Final = "in"
NOW: Final = datetime.now(timezone.utc)
DAYS: Final = 29  # over which a history is spread: some rows expire when they are 30 days old
MOMENT: Final = timedelta(milliseconds=100)  # between the rows of one number
COMMIT: Final = 10_000  # numbers whose rows are written by one commit
LINKS: Final = 10_000  # names of one file: a file system allows some 65,000

Values = Mapping[str, Callable[[int], object]]
"""By column, its value in the row of a number; of JSON the text."""


def write(state: Path, numbers: range, *parts: tuple[Row, str, Values]) -> None:
    """Write rows of some numbers, in order, as copies of one row with another time and other values.

    As after maintenance those of a table are in one file.
    """
    ledger, step = Ledger(str(state)), timedelta(days=DAYS) / numbers.stop
    for start in range(numbers.start, numbers.stop, COMMIT):
        some = range(start, min(start + COMMIT, numbers.stop))
        for place, (given, time, values) in enumerate(parts):
            rows = to_arrow(type(given), [given]).take(pa.array([0] * len(some)))
            times = [NOW - (numbers.stop - n) * step + place * MOMENT for n in some]
            for name, column in {time: times, **{name: map(value, some) for name, value in values.items()}}.items():
                field = rows.schema.field(name)
                rows = rows.set_column(rows.schema.get_field_index(name), field, pa.array(column, field.type))
            ledger.table(type(given)).change(partial(_append, rows), None, "writing a history")
    for given, _, _ in parts:
        list(compact(ledger.table(type(given)), 2))


def _append(rows: pa.Table, table: DeltaTable, commit: CommitProperties) -> None:
    write_deltalake(table, rows, mode="append", commit_properties=commit, post_commithook_properties=NO_HOOKS)


def epochs(state: Path, count: int) -> Row:
    """Let the query have committed `count` epochs; its sink must not count them."""
    log, newest = _log(state)
    given = Ledger(str(state)).table(schema.EpochRow).rows([("epoch", "=", newest)])[0]
    write(state, range(newest + 1, count), (given, "committed_at", {"epoch": lambda n: n}))
    for folder in ("offsets", "commits"):
        text = log.read(f"{folder}/{newest}")
        for epoch in log.numbers(folder):  # Spark would not have these any more
            log.delete(f"{folder}/{epoch}")
            log.delete(f"{folder}/.{epoch}.crc")
        for epoch in (count - 2, count - 1):
            log.replace(f"{folder}/{epoch}", text or "")
    return given


def control(state: Path, count: int) -> Row:
    """Let the query have obeyed `count` control events, which have set one key."""
    name = "{:032x}".format
    event = schema.ControlEventRow(
        event_id=name(count), sequence=count, kind="set_config", target="job", value={"key": "rate", "value": count},
        status="accepted", lineage=1, incarnation=1, at=NOW, reason="", delivery="immediate", origin="cli",
    )  # fmt: skip
    applied = schema.ControlTransitionRow(
        event_id="", sequence=0, status="applied", query=QUERY, epoch=1, lineage=1, incarnation=1, at=NOW, reason=""
    )
    over = replace(applied, status="acknowledged", query="", epoch=None)
    own: Values = {"event_id": name, "sequence": lambda n: n}
    accepted: Values = {**own, "value": lambda n: to_json({"key": "rate", "value": n})}
    write(state, range(1, count + 1), (event, "at", accepted), (applied, "at", own), (over, "at", own))
    stamp = Stamp(Configuration().after([event_of(event)]), count - 1, query=QUERY)
    _change_offsets(state, control=count, stamp=stamps.write(str(checkpoint_of(state)), stamp.text()))
    return event


def incidents(state: Path, count: int) -> Row:
    """Let `count` failures have been reported, each with its stack, and resolved by a restart of the query."""

    def evidence(n: int) -> str:
        return to_json({"stack": "\n".join(f"at some.Class.method(File.java:{n + line})" for line in range(40))})

    name = "{:032x}".format
    given = schema.IncidentRow(
        incident_id=name(count), at=NOW, job="bench", incarnation=1, operator=f"job 'bench', query '{QUERY}'",
        type="failure", labels={"type": "NETWORK", "origin": "library"}, severity="WARNING", what="closed", evidence={},
        action="restart 1 in 100 ms", fingerprint="f",
    )  # fmt: skip
    opened = schema.IncidentChangeRow(incident_id="", at=NOW, old="", new="OPEN", cause="", incarnation=1, count=1)
    own: Values = {"incident_id": name}
    happened: Values = {**own, "what": "the server closed connection {}".format, "evidence": evidence}
    changes = [(one, "at", own) for one in (opened, replace(opened, old="OPEN", new="RESOLVED"))]
    entered: list[tuple[Row, str, Values]] = [
        (schema.ExecutionStateRow(operator=QUERY, state=one, since=NOW, incarnation=1, reason=""), "since", {})
        for one in ("RESTARTING", "RUNNING")
    ]
    write(state, range(1, count + 1), (given, "at", happened), *changes, *entered)
    return given


def channels(state: Path, count: int) -> Row:
    """Let `count` channels of `steps`, those that are short, have finished."""
    given = schema.FinishedRow(
        kind="channel", query=QUERY, source=SOURCE, channel=f"short-{count - 1:06d}", sequence=count, epoch=1,
        lineage=1, incarnation=1, position=0, drained=False, at=NOW, data=-1,
    )  # fmt: skip
    own: Values = {"channel": lambda n: f"short-{n - 1:06d}", "sequence": lambda n: n}
    write(state, range(1, count + 1), (given, "at", own))
    _change_offsets(state, confirmed=count, sequence=count)
    return given


def _change_offsets(state: Path, **changes: Any) -> None:
    """Change the source's offsets of the newest committed epoch, and of one that is planned behind it."""
    log, newest = _log(state)
    for epoch in range(newest, max(log.numbers("offsets")) + 1):
        logged, text = log.offsets(epoch), log.read(f"offsets/{epoch}")
        assert logged is not None and text is not None
        changed = replace(source_offsets(logged)[SOURCE], **changes)
        log.replace(f"offsets/{epoch}", with_offsets(text, {SOURCE: changed}))


def _log(state: Path) -> tuple[SparkLog, int]:
    log = SparkLog(str(checkpoint_of(state)))
    newest = log.newest_commit()
    assert newest is not None
    return log, newest


class _Unsynced(LocalFolder):
    def create_once(self, name: str, content: bytes | str, *, durable: bool = False, writer: str = "0") -> bool:
        return super().create_once(name, content, writer=writer)


def entries(state: Path, count: int) -> None:
    """Let an exchange have `count` more entries that are to be read, each with the rows of its newest epoch."""
    (exchange,) = state.glob("exchanges/*")
    log = ArrowLog(_Unsynced(exchange / "log"), "benchmark")
    given = next(one for n in range(log.look().last, -1, -1) if (one := log.entry(n)) and one.segments)
    there = [exchange / "data" / one.name for one in given.segments]
    for n in range(count):
        named = [one.with_name(given.segments[i].name.replace("-e", f"-e9{n:07d}")) for i, one in enumerate(there)]
        for source, name in zip(there, named, strict=True):
            (os.link if n % LINKS else shutil.copyfile)(source, name)
        there = there if n % LINKS else named
        segments = tuple(replace(one, name=name.name) for one, name in zip(given.segments, named, strict=True))

        def more(log: LogState, segments: Any = segments) -> Entry:
            return replace(given, segments=segments, total=log.total + given.row_count)

        log.append(more, "0")
