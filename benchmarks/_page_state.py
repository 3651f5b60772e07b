"""A state directory of a job with very many queries and epochs, written in a second, for the page."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

from spark_ext.ledger import Ledger, start_incarnation
from spark_ext.ledger.schema import DefinitionRow, EpochRow, ExecutionStateRow, FinishedRow, IncidentRow
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role

COMMIT = 10_000
"""Epochs of one commit."""

HOURS = 24
"""Over which time the epochs are spread."""


def made(folder: Path, queries: int, epochs: int) -> str:
    """Write it; this process is the driver.

    Args:
        folder: of the state.
        queries: their number; each fourth one reads what the one before it writes.
        epochs: of all queries together.
    """
    ledger = Ledger(str(folder))
    start_incarnation(ledger, "many")
    now = datetime.now(timezone.utc)
    begin = now - timedelta(hours=HOURS)
    dice = np.random.default_rng(7)
    uids = [f"query-{number:03}" for number in range(queries)]
    ledger.table(DefinitionRow).append([_definition(number, begin) for number in range(queries)])
    states = [_state("", "RUNNING", begin)]
    for number, uid in enumerate(uids):
        states += [_state(uid, "CREATED", begin), _state(uid, "RUNNING", begin + timedelta(seconds=5))]
        for hour in range(number % 7):
            at = begin + timedelta(hours=2 * hour + 1, seconds=number)
            states += [_state(uid, "RESTARTING", at), _state(uid, "RUNNING", at + timedelta(seconds=20))]
    ledger.table(ExecutionStateRow).append(states)
    times = np.sort(dice.uniform(0, HOURS * 3600, epochs))
    lasted = dice.lognormal(5.5, 0.6, epochs).astype(int)
    rows = dice.integers(0, 5_000, epochs)
    for first in range(0, epochs, COMMIT):
        ledger.table(EpochRow).append(
            [
                EpochRow(
                    query=uids[number % queries],
                    query_id="0",
                    epoch=number // queries,
                    lineage=1,
                    incarnation=1,
                    input_rows=int(rows[number]),
                    committed_at=begin + timedelta(seconds=float(times[number])),
                    duration_ms=int(lasted[number]),
                    offsets=[{"uid": f"{uids[number % queries]}-in", "kind": "channels", "running": {"a": {"at": 1}}}],
                )
                for number in range(first, min(epochs, first + COMMIT))
            ]
        )
    ledger.table(FinishedRow).append(
        [
            FinishedRow(
                kind="channel", query=uid, source=f"{uid}-in", channel=f"c{place}", sequence=place + 1, epoch=place,
                lineage=1, incarnation=1, position=None, drained=False, at=begin,
            )
            for uid in uids
            for place in range(4)
        ]
    )  # fmt: skip
    ledger.table(IncidentRow).append(
        [
            IncidentRow(
                incident_id=f"{place:08x}",
                at=begin + timedelta(minutes=place * 5),
                job="many",
                incarnation=1,
                operator=f"job 'many', query '{uids[place % queries]}'",
                type="failure",
                labels={"type": "NETWORK", "origin": "library"},
                what="the server closed the connection",
                evidence={"stack": "at some.Class.method(File.java:1)\n" * 40},
                action="restart 1 in 100 ms",
                severity="WARNING",
                fingerprint="f",
            )
            for place in range(200)
        ]
    )
    return str(folder)


def _definition(number: int, at: datetime) -> DefinitionRow:
    uid = f"query-{number:03}"
    before = number % 4 != 0
    source = OperatorDefinition(
        f"{uid}-in",
        Role.SOURCE,
        "exchange" if before else "files",
        {"path": f"exchange-{number - 1:03}" if before else f"data/{number}"},
    )
    sink = OperatorDefinition(f"{uid}-out", Role.SINK, "exchange_2pc", {"path": f"exchange-{number:03}"})
    return DefinitionRow(
        query=uid, lineage=1, incarnation=1, at=at, definition=QueryDefinition((source, sink)).to_json()
    )


def _state(operator: str, state: str, since: datetime) -> ExecutionStateRow:
    return ExecutionStateRow(operator=operator, state=state, since=since, incarnation=1, reason="")
