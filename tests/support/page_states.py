"""State directories as a job of some hours leaves them, for the page: restarts, a lost driver, incidents, exchanges."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from math import sin
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from spark_ext.ledger import Incarnation, Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.columns import to_arrow
from spark_ext.ledger.heartbeat import Heartbeat
from spark_ext.ledger.schema import (
    CheckpointRow,
    DefinitionRow,
    EpochRow,
    ExecutionStateRow,
    FinishedRow,
    IncidentRow,
    JobRow,
)
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role

STACK = """Traceback (most recent call last):
  File "shop.py", line 41, in price
    return rates[row.currency] * row.amount
KeyError: 'CHF'"""

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\"><b>bold</b>"


def operator(uid: str, role: Role, kind: str, path: str) -> OperatorDefinition:
    return OperatorDefinition(uid, role, kind, {"path": path}, {"path": path, "uid": uid})


def query(reads: Sequence[str], writes: str, uid: str) -> dict[str, Any]:
    """A definition: names that begin with `@` are exchanges."""
    sources = [
        operator(
            f"{uid}-{name.rpartition('/')[2].lstrip('@')}", Role.SOURCE, "exchange" if name[0] == "@" else "files",
            name.lstrip("@"),
        )
        for name in reads
    ]  # fmt: skip
    sink = operator(f"{uid}-out", Role.SINK, "exchange_2pc" if writes[0] == "@" else "delta_2pc", writes.lstrip("@"))
    return QueryDefinition((*sources, sink)).to_json()


SHOP = {
    "load-orders": (("data/orders",), "@orders"), "load-rates": (("data/rates",), "@rates"),
    "price": (("@orders", "@rates"), "@priced"), "daily": (("@priced",), "out/daily"),
    "alerts": (("@priced", "@rates"), "out/alerts"), "archive": (("@orders",), "out/archive"),
    "audit": (("data/audit",), "out/audit"),
}  # fmt: skip


def shop(folder: Path, *, hours: float = 3, seed: int = 1, what: str = "", alive: bool = True) -> str:
    """A job of seven queries whose first driver was lost, and whose second one is this process.

    `what` is the text of the newest incident.
    """
    dice = random.Random(seed)
    now = datetime.now(timezone.utc)
    begin = now - timedelta(hours=hours)
    lost, again = begin + timedelta(hours=hours * 0.4), begin + timedelta(hours=hours * 0.43)
    ledger = Ledger(str(folder))
    writer = LedgerWriter(ledger, start_incarnation(ledger, "shop"))
    own = ledger.table(JobRow).rows()[0]
    first = {**vars(own), "at": begin, "driver_pid": 1, "driver_started": 1.0, "start_id": 1}
    second = {**vars(own), "incarnation": 2, "at": again, "start_id": 2}
    rows: list[Any] = [JobRow(**first), JobRow(**second)]
    if not alive:
        rows.append(JobRow(**{**second, "event": "ended", "at": now, "reason": "FAILED"}))
    # The start of this process is the second one: the table is rewritten, as nothing else can date a start back.
    write_deltalake(ledger.table(JobRow).uri, to_arrow(JobRow, rows), mode="overwrite")

    def state(name: str, uid: str, at: datetime, number: int, reason: str = "") -> ExecutionStateRow:
        return ExecutionStateRow(operator=uid, state=name, since=at, incarnation=number, reason=reason)

    states, epochs, incidents = [], [], []
    definitions = [
        DefinitionRow(query=uid, lineage=1, incarnation=1, at=begin, definition=query(*made, uid))
        for uid, made in SHOP.items()
    ]
    for number, since, until in ((1, begin, lost), (2, again, now)):
        states.append(state("CREATED", "", since, number))
        states.append(state("RUNNING", "", since + timedelta(seconds=9), number))
        for uid in SHOP:
            states.append(state("CREATED", uid, since, number))
            states.append(state("RUNNING", uid, since + timedelta(seconds=7), number))
            at, epoch = since + timedelta(seconds=9), 1_000 * number
            while at < until:
                ms = int(dice.lognormvariate(6.3 if uid == "price" else 5.6, 0.5))
                epochs.append((uid, epoch, number, at, int(dice.uniform(500, 4_000)), ms))
                at, epoch = at + timedelta(seconds=hours * 8, milliseconds=ms), epoch + 1
    closed = ("load-orders", "NETWORK", "library", "postgres: the server closed the connection", "restart 1 in 100 ms")
    cases = [
        (0.2, *closed, 45),
        (0.6, "price", "RESOURCE", "spark", "no space left on device", "restart 1 in 1 s", 130),
        (0.75, *closed, 20),
        (0.9, "price", "USER_CODE", "user", "shop.py, line 41, in price: KeyError: 'CHF'", "stopped: FAILED", 0),
    ]
    for place, (share, uid, kind, origin, text, action, seconds) in enumerate(cases):
        at = begin + timedelta(hours=hours * share)
        number = 1 if at < lost else 2
        incidents.append(
            IncidentRow(
                incident_id=f"{place + 1}c1f02aa{place}", at=at, job="shop", incarnation=number, type="failure",
                operator=f"job 'shop', query '{uid}'", labels={"type": kind, "origin": origin, "team": "billing"},
                what=what or text if place == 3 else text, action=action, severity="WARNING", fingerprint="f",
                evidence={
                    "stack": STACK, "verdict": {"type": kind, "place": "shop.py, line 41, in price", "rule": ""},
                    "exceptions": [{"class": "KeyError", "message": what or "'CHF'"}],
                },
            )
        )  # fmt: skip
        if seconds:
            for name in (uid, ""):
                states.append(state("RESTARTING", name, at, number, text))
                states.append(state("RUNNING", name, at + timedelta(seconds=seconds), number))
        else:
            states.append(state("FAILED", uid, at, number, what or text))
            states.append(state("FAILING", "", at, number, what or text))
    incidents.append(
        IncidentRow(
            incident_id="5be77d10f00d", at=again, job="shop", incarnation=2, operator="job 'shop'", type="driver_lost",
            labels={"type": "SYSTEM", "origin": "spark"},
            what="the driver of incarnation 1, process 1 on node7, was lost",
            evidence={"incarnation": 1, "last_seen": lost.isoformat()}, action="continued by incarnation 2",
            severity="WARNING", fingerprint="f",
        )
    )  # fmt: skip
    failed_at = begin + timedelta(hours=hours * 0.9)
    offset = {
        "kind": "channels",
        "version": 2,
        "lineage": 1,
        "running": {f"part-{n}": {"at": 1} for n in range(17, 30)},
    }
    for made in (
        definitions,
        states,
        incidents,
        [
            EpochRow(
                query=uid, query_id=uid, epoch=epoch, lineage=1, incarnation=number, input_rows=rows_,
                committed_at=at, duration_ms=ms,
                lag_rows=int(20_000 * (1.2 + sin(epoch / 9))) if uid in ("load-orders", "price") else None,
                offsets=[{"uid": f"{uid}-{SHOP[uid][0][0].rpartition('/')[2].lstrip('@')}", **offset}],
            )
            for uid, epoch, number, at, rows_, ms in epochs
            if uid != "price" or at < failed_at
        ],
        [
            FinishedRow(
                kind="channel", query=uid, source=f"{uid}-{SHOP[uid][0][0].rpartition('/')[2]}", channel=f"part-{n}",
                sequence=n + 1, epoch=100 + n, lineage=1, incarnation=1, position=None, drained=n == 3, at=begin,
            )
            for uid in ("load-orders", "load-rates", "audit")
            for n in range(17 if uid != "audit" else 9)
        ],
        [
            CheckpointRow(
                checkpoint_id=n, kind="savepoint" if n % 17 == 0 else "periodic", query="", epoch=None, lineage=1,
                status="FAILED" if n == 23 else "COMPLETED", metadata=None, incarnation=1 if n < 24 else 2,
                at=begin + timedelta(seconds=hours * 3600 * n / 60 + n / 100 + (n % 7) / 5), mode="aligned",
                triggered_at=begin + timedelta(seconds=hours * 3600 * n / 60), reason="", rows_in_flight=n * 7,
            )
            for n in range(1, 60)
            if n not in (24, 25)
        ],
    ):  # fmt: skip
        for table in {type(row) for row in made}:
            ledger.table(table).append(made)
    if alive:
        said = {
            "load-orders": {"lag": {"load-orders-orders": [41_200, _ms(now)]}, "complete": True},
            "price": {"lag": {"price-orders": [1_200, _ms(now)], HOSTILE: [3, _ms(now)]}, "complete": False},
            "alerts": {
                "lag": {"alerts-priced": [1_200, _ms(now - timedelta(seconds=40))], "alerts-rates": [3, _ms(now)]},
                "complete": True,
                "watermark": _ms(now - timedelta(seconds=90)),
                "newest_row": _ms(now - timedelta(seconds=70)),
            },
        }
        # Later than now, as a test may look at it when the driver would have been silent for a while.
        Heartbeat(str(folder), Incarnation(own.job, own.job_id, 2, 1, 2)).beat(now + timedelta(hours=1), said)
    del writer
    return str(folder)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
