"""Long histories, written into the state of a job that has run for a moment and stands still: as of weeks of work.

Rows are those of the ledger's own classes, written by its tables; what Spark's log says is changed to fit them.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from benchmarks._spark import checkpoint_of
from spark_ext.control import stamps
from spark_ext.exchange.arrow.log import ArrowLog
from spark_ext.exchange.entries import Entry, LogState
from spark_ext.ledger import Ledger
from spark_ext.ledger.maintenance import compact
from spark_ext.ledger.schema import (
    ControlEventRow,
    ControlTransitionRow,
    EpochRow,
    FinishedRow,
    IncidentChangeRow,
    IncidentRow,
    Row,
)
from spark_ext.ledger.view import event_of
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.query_offsets import source_offsets
from spark_ext.spark.logs.spark_log import SparkLog, with_offsets
from spark_ext.storage import LocalFolder

QUERY: Final = "q"
SOURCE: Final = "in"
NOW: Final = datetime.now(timezone.utc)
DAYS: Final = 29  # over which a history is spread: some rows expire when they are 30 days old
COMMIT: Final = 10_000  # numbers whose rows are written by one commit
LINKS: Final = 10_000  # names of one file: a file system allows some 65,000

RowsOf = Callable[[int, datetime], Sequence[Row]]
"""The rows of a number, from 1, at a time."""


def write(state: Path, count: int, rows_of: RowsOf, first: int = 1) -> Row:
    """Write the rows of the numbers `first` to `count`, in order; returns the first one of the last number.

    As after maintenance they are in one file.
    """
    ledger, begin, step = Ledger(str(state)), NOW - timedelta(days=DAYS), timedelta(days=DAYS) / count
    rows = defaultdict[type[Row], list[Row]](list)
    for n in range(first, count + 1):
        for row in rows_of(n, begin + n * step):
            rows[type(row)].append(row)
        if n % COMMIT == 0 or n == count:
            for kind, some in rows.items():
                ledger.table(kind).append(some)
                some.clear()
    for kind in rows:
        list(compact(ledger.table(kind), 2))
    return rows_of(count, NOW)[0]


def epochs(state: Path, count: int) -> Row:
    """Let the query have committed `count` epochs; its sink must not count them."""
    log, newest = _log(state)
    given = Ledger(str(state)).table(EpochRow).rows([("epoch", "=", newest)])[0]
    last = write(state, count - 1, lambda n, at: [replace(given, epoch=n, committed_at=at)], newest + 1)
    for folder in ("offsets", "commits"):
        text = log.read(f"{folder}/{newest}")
        for epoch in log.numbers(folder):
            if epoch > newest:  # planned, and not committed
                log.delete(f"{folder}/{epoch}")
        for epoch in (count - 2, count - 1):
            log.replace(f"{folder}/{epoch}", text or "")
    return last


def control(state: Path, count: int) -> Row:
    """Let the query have obeyed `count` control events, which have set one key."""
    event = ControlEventRow(
        event_id="", sequence=0, kind="set_config", target="job", value={}, status="accepted", lineage=1,
        incarnation=1, at=NOW, reason="", delivery="immediate", origin="cli",
    )  # fmt: skip
    step = ControlTransitionRow(
        event_id="", sequence=0, status="applied", query=QUERY, epoch=1, lineage=1, incarnation=1, at=NOW, reason=""
    )

    def rows(n: int, at: datetime) -> list[Row]:
        own: dict[str, Any] = {"event_id": f"{n:032x}", "sequence": n, "at": at}
        over = replace(step, status="acknowledged", query="", epoch=None, **own)
        return [replace(event, value={"key": "rate", "value": n}, **own), replace(step, **own), over]

    last = write(state, count, rows)
    assert isinstance(last, ControlEventRow)
    stamp = Stamp(Configuration().after([event_of(last)]), count - 1, query=QUERY)
    _change_offsets(state, control=count, stamp=stamps.write(str(checkpoint_of(state)), stamp.text()))
    return last


def incidents(state: Path, count: int) -> Row:
    """Let `count` failures have been reported and resolved, each with its stack."""
    given = IncidentRow(
        incident_id="", at=NOW, job="bench", incarnation=1, operator=f"job 'bench', query '{QUERY}'", type="failure",
        labels={"type": "NETWORK", "origin": "library"}, severity="WARNING", what="", action="restart 1 in 100 ms",
        fingerprint="", evidence={},
    )  # fmt: skip
    opened = IncidentChangeRow(incident_id="", at=NOW, old="", new="OPEN", cause="", incarnation=1, count=1)

    def rows(n: int, at: datetime) -> list[Row]:
        own: dict[str, Any] = {"incident_id": f"{n:032x}", "at": at}
        stack = "\n".join(f"at some.Class.method(File.java:{n + line})" for line in range(40))
        what = f"the server closed connection {n}"
        one = replace(given, what=what, fingerprint=f"{n % 100:x}", evidence={"stack": stack}, **own)
        change = replace(opened, **own)
        return [one, change, replace(change, old="OPEN", new="RESOLVED", at=at + timedelta(seconds=1))]

    return write(state, count, rows)


def channels(state: Path, count: int) -> Row:
    """Let `count` channels of `steps`, those that are short, have finished."""
    given = FinishedRow(
        kind="channel", query=QUERY, source=SOURCE, channel="", sequence=0, epoch=1, lineage=1, incarnation=1,
        position=0, drained=False, at=NOW, data=-1,
    )  # fmt: skip
    name = "short-{:06d}".format
    last = write(state, count, lambda n, at: [replace(given, channel=name(n - 1), sequence=n, at=at)])
    _change_offsets(state, confirmed=count, sequence=count)
    return last


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
