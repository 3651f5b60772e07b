"""Rows for tests, and processes that write them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from spark_ext.ledger import schema

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def epoch(
    number: int, query: str = "q", lineage: int = 1, at: datetime | None = None, incarnation: int = 1
) -> schema.EpochRow:
    return schema.EpochRow(
        query=query, query_id=f"id-{query}-{lineage}", epoch=number, lineage=lineage, incarnation=incarnation,
        input_rows=10, committed_at=at or START + timedelta(seconds=number), duration_ms=5,
        spent_ms={"planning": 1, "execution": 3, "log": 1},
        parts_ms={"planning": 1, "reading": 1, "user_code": 1, "state": 0, "commit": 2, "other": 0},
        offsets=[{"uid": "s", "at": number}],
    )  # fmt: skip


def flag(
    sequence: int, source: str = "s", query: str = "q", lineage: int = 1, kind: str = "channel", position: Any = None
) -> schema.FinishedRow:
    named = (f"c{sequence}", sequence) if kind == "channel" else ("", 0)
    return schema.FinishedRow(
        kind=kind, query=query, source=source if kind != "query" else "", channel=named[0], sequence=named[1],
        epoch=1, lineage=lineage, incarnation=1, position=position, drained=False, at=START,
    )  # fmt: skip


def checkpoint(
    number: int, kind: str = "periodic", status: str = "COMPLETED", query: str = "", lineage: int = 1,
    at: datetime | None = None,
) -> schema.CheckpointRow:  # fmt: skip
    return schema.CheckpointRow(
        checkpoint_id=number, kind=kind, query=query, epoch=7 if query else None, status=status, lineage=lineage,
        incarnation=1, metadata={"version": 1} if status == "COMPLETED" else None,
        at=at or START + timedelta(seconds=number), reason="",
    )  # fmt: skip


def definition(query: str = "q", lineage: int = 1, incarnation: int = 1, **changed: Any) -> schema.DefinitionRow:
    made = {"version": 1, "operators": [], "natives": [], "sink_format": "folder", "columns": [], **changed}
    return schema.DefinitionRow(query=query, lineage=lineage, incarnation=incarnation, at=START, definition=made)


def event(
    sequence: int, target: str = "", status: str = "accepted", lineage: int = 1, at: datetime | None = None,
    kind: str = "drain", value: Any = None,
) -> schema.ControlEventRow:  # fmt: skip
    return schema.ControlEventRow(
        event_id=f"e{sequence}", sequence=sequence, kind=kind, target=target or "job", value=value, status=status,
        lineage=lineage, incarnation=1, at=at or START, reason="", delivery="immediate",
    )  # fmt: skip


def transition(
    sequence: int, status: str = "applied", query: str = "q", epoch: int | None = 1
) -> schema.ControlTransitionRow:
    return schema.ControlTransitionRow(
        event_id=f"e{sequence}", sequence=sequence, status=status, query=query, epoch=epoch, lineage=1, incarnation=1,
        at=START, reason="",
    )  # fmt: skip


def http_request(path: str = "/v1/jobs/j/control") -> schema.ControlRequestRow:
    return schema.ControlRequestRow(
        at=START, requested_by="ops", origin="127.0.0.1", method="POST", path=path, status=202, event_id="e1", reason=""
    )


def state(name: str, operator: str = "", since: datetime | None = None) -> schema.ExecutionStateRow:
    return schema.ExecutionStateRow(operator=operator, state=name, since=since or START, incarnation=1, reason="")


def latency(ms: int = 250, query: str = "q", at: datetime | None = None, **more: Any) -> schema.LatencyRow:
    given: dict[str, Any] = {
        "query": query, "source": "s", "way": [], "at": at or START, "incarnation": 1, "latency_ms": ms,
        "hops": [[query, ms]], "markers": 3, "p50_ms": None, "p95_ms": None, "p99_ms": None,
    }  # fmt: skip
    return schema.LatencyRow(**{**given, **more})


def exchange(position: int, event: str = "released") -> schema.ExchangeRow:
    return schema.ExchangeRow(
        exchange="x", event=event, query="", lineage=1, epoch=None, position=position, checkpoint_id=None,
        incarnation=1, at=START,
    )  # fmt: skip


def incident(number: int, at: datetime | None = None) -> schema.IncidentRow:
    return schema.IncidentRow(
        incident_id=f"i{number}", at=at or START, job="j", incarnation=1, operator="q", type="failure",
        labels={"type": "USER_CODE"}, what="it failed", evidence=None, action="restart", severity="WARNING",
        fingerprint="f",
    )  # fmt: skip


def incident_change(number: int, at: datetime | None = None) -> schema.IncidentChangeRow:
    return schema.IncidentChangeRow(
        incident_id=f"i{number}", at=at or START, old="", new="OPEN", cause="", incarnation=1, count=1
    )


def bad_rows(number: int, at: datetime | None = None) -> schema.BadRowsRow:
    return schema.BadRowsRow(
        query="q", source="s", epoch=number, rows=3, path="/table", role="source", lineage=1, incarnation=1,
        at=at or START,
    )  # fmt: skip


def of_each_table() -> list[schema.Row]:
    """A row of each table but `jobs`, which a start writes."""
    return [
        *(definition(), epoch(1), flag(1, position={"row": 3}), checkpoint(1), event(1), transition(1), http_request()),
        *(state("RUNNING"), latency(), exchange(1), incident(1), incident_change(1), bad_rows(1)),
    ]


PRELUDE = """
import sys
from spark_ext.errors import SparkExtError
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from tests.ledger.rows import *
def say(text): print(text, flush=True)
uri = sys.argv[1]
"""


@contextmanager
def process(script: str, *arguments: object, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs the script after the prelude; it is killed at the end if it still runs."""
    started = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd=Path(__file__).parents[2], env=env,
    )  # fmt: skip
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()
