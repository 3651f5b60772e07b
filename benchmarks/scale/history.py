"""Long histories, written into the state of a job that has run for a moment and stands still: as of weeks of work.

Rows are those of the ledger's own classes, written by its tables; what Spark's log says is changed to fit them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks._spark import checkpoint_of
from spark_ext.control import stamps
from spark_ext.exchange.arrow.log import ArrowLog
from spark_ext.exchange.entries import Entry, EntryKind, LogState
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
DAYS: Final = 29  # over which a history is spread: some rows expire when they are 30 days old
COMMIT: Final = 10_000  # numbers whose rows are written by one commit
LINKS: Final = 10_000  # names of one file: a file system allows some 65,000

RowsOf = Callable[[int, datetime], Sequence[Row]]
"""The rows of a number, from 1, at a time."""


def write(state: Path, count: int, rows_of: RowsOf, first: int = 1) -> Row:
    """Write the rows of the numbers `first` to `count`, in order; returns the first one of the last number.

    As after maintenance they are in one file.
    """
    ledger, begin = Ledger(str(state)), datetime.now(timezone.utc) - timedelta(days=DAYS)
    step, kinds = timedelta(days=DAYS) / count, set[type[Row]]()
    for start in range(first, count + 1, COMMIT):
        numbers = range(start, min(start + COMMIT, count + 1))
        rows = sorted((row for n in numbers for row in rows_of(n, begin + n * step)), key=lambda row: row.table)
        for _, group in groupby(rows, key=lambda row: row.table):
            some = list(group)
            ledger.table(type(some[0])).append(some)
            kinds.add(type(some[0]))
    for kind in kinds:
        list(compact(ledger.table(kind), 2))
    return rows_of(count, begin + count * step)[0]


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

    def rows(n: int, at: datetime) -> list[Row]:
        event = ControlEventRow(
            event_id=f"{n:032x}", sequence=n, kind="set_config", target="job", value={"key": "rate", "value": n},
            status="accepted", lineage=1, incarnation=1, at=at, reason="", delivery="immediate", origin="cli",
        )  # fmt: skip
        steps = (("applied", QUERY, n // 100), ("acknowledged", "", None))
        return [event, *(_step(event, status, query, epoch) for status, query, epoch in steps)]

    last = write(state, count, rows)
    assert isinstance(last, ControlEventRow)
    stamp = Stamp(Configuration().after([event_of(last)]), count - 1, query=QUERY)
    _change_offsets(state, control=count, stamp=stamps.write(str(checkpoint_of(state)), stamp.text()))
    return last


def _step(event: ControlEventRow, status: str, query: str, epoch: int | None) -> ControlTransitionRow:
    return ControlTransitionRow(
        event_id=event.event_id, sequence=event.sequence, status=status, query=query, epoch=epoch, lineage=1,
        incarnation=1, at=event.at, reason="",
    )  # fmt: skip


def incidents(state: Path, count: int) -> Row:
    """Let `count` failures have been reported and resolved, each with its stack."""

    def rows(n: int, at: datetime) -> list[Row]:
        incident = f"{n:032x}"
        changes = (("", "OPEN", at), ("OPEN", "RESOLVED", at + timedelta(seconds=1)))
        return [
            IncidentRow(
                incident_id=incident, at=at, job="bench", incarnation=1, operator=f"job 'bench', query '{QUERY}'",
                type="failure", labels={"type": "NETWORK", "origin": "library"}, severity="WARNING",
                what=f"the server closed connection {n}", action="restart 1 in 100 ms", fingerprint=f"{n % 100:x}",
                evidence={"stack": "\n".join(f"at some.Class.method(File.java:{n + line})" for line in range(40))},
            ),
            *(
                IncidentChangeRow(
                    incident_id=incident, at=moment, old=old, new=new, cause="an epoch", incarnation=1, count=1
                )
                for old, new, moment in changes
            ),
        ]  # fmt: skip

    return write(state, count, rows)


def channels(state: Path, count: int) -> Row:
    """Let `count` channels of `steps`, those that are short, have finished."""

    def rows(n: int, at: datetime) -> list[Row]:
        return [
            FinishedRow(
                kind="channel", query=QUERY, source=SOURCE, channel=f"short-{n - 1:06d}", sequence=n, epoch=1,
                lineage=1, incarnation=1, position=0, drained=False, at=at, data=-1,
            )
        ]  # fmt: skip

    last = write(state, count, rows)
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


def entries(exchange: Path, count: int) -> None:
    """Let the exchange have `count` more entries that are to be read, each a copy of its newest epoch."""
    log = ArrowLog(_Unsynced(exchange / "log"), "benchmark")
    number = next(n for n in range(log.look().last, -1, -1) if (one := log.entry(n)) and one.segments)
    given = log.entry(number)
    assert given is not None
    for names in _copied(exchange / "data", given, count):
        segments = tuple(replace(one, name=name) for one, name in zip(given.segments, names, strict=True))

        def more(state: LogState, segments: Any = segments) -> Entry:
            return replace(given, kind=EntryKind.EPOCH, segments=segments, total=state.total + given.row_count)

        log.append(more, "0")


def _copied(folder: Path, given: Entry, count: int) -> Iterator[list[str]]:
    """Names of files with the rows of an entry."""
    sources = [folder / one.name for one in given.segments]
    for n in range(count):
        names = [one.with_name(one.name.replace("-e", f"-e9{n:07d}", 1)) for one in sources]
        for source, name in zip(sources, names, strict=True):
            if n % LINKS:
                os.link(source, name)
            else:
                name.write_bytes(source.read_bytes())
        if n % LINKS == 0:
            sources = names
        yield [one.name for one in names]
