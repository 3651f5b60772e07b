"""The gateway of an inbox: events per second of its processor time, and how long an answer takes at a rate.

The gateway is a process of its own, as `spark-ext ingest serve` is, with signatures (HMAC), identities, and one sync
for a group of requests before they are answered; what it makes of its log in the background is part of its time. For
`ack=store` the inbox is in an object store on this machine, whose own time is part of each answer.
Requests are made in advance, and sent by another process over 64 connections. No job reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import _control_clients
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._push import Answers, described, gateway, lines, send, single
from benchmarks._spark import counted, until, workplace
from spark_ext.ingest.place import InboxPlace, inbox_path
from tests.chaos.push_job import INBOX
from tests.servers.object_store import Bucket, running

ROUNDS = 3
REQUESTS = {"single": 30_000, "raw": 2_000, "typed": 2_000}
"""Requests of each round; those of the last two are NDJSON of 100 lines."""
CONNECTIONS = 64
RATE = 1_000
SECONDS = 20
COLUMNS = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "long"), ("amount", "double"), ("about", "string"))
    ],
}
AIMS = {"single": 8_000, "raw": 300_000, "typed": 150_000}  # events per second of processor time
MAKES: dict[str, Callable[[int], bytes]] = {"single": single, "raw": lines, "typed": lines}
LATENCIES = {"disk": {50: 5.0, 99: 50.0}, "store": {50: 150.0, 99: 400.0}}  # ms by percentile, for each `ack`


def run(rounds: int = ROUNDS) -> Figures:
    rates: dict[str, list[float]] = {side: [] for side in REQUESTS}
    times: dict[str, list[float]] = {ack: [] for ack in LATENCIES}
    with running() as store:
        for _, counts in counted(rounds):
            found = {side: _rate(side) for side in REQUESTS}
            answered = {ack: _answered(ack, store.bucket() if ack == "store" else None) for ack in LATENCIES}
            if counts:
                for ack, took in answered.items():
                    times[ack] += took
                for side, rate in found.items():
                    rates[side].append(rate)
    for side, aim in AIMS.items():
        sample = Sample.of(rates[side], "events/s")
        yield Figure(
            f"push_{side}", f"events per second of the gateway's processor time, {side} / {aim:,}",
            sample.median / aim, Aim(">=", 1), {side: sample}, {"requests": REQUESTS[side], "connections": CONNECTIONS},
        )  # fmt: skip
    for ack, limits in LATENCIES.items():
        sample, name = Sample.of(times[ack], "ms"), "push_answer" if ack == "disk" else f"push_answer_{ack}"
        for percent, limit in limits.items():
            value = sample.percentile(percent)
            what = f"from a request to its answer, ack={ack}, {RATE:,} requests/s, p{percent} / {limit:g} ms"
            yield Figure(f"{name}_p{percent}", what, value / limit, Aim("<=", 1), {"answer": sample}, {"ms": value})


def _rate(side: str) -> float:
    """Events per second of processor time."""
    requests = [MAKES[side](number) for number in range(REQUESTS[side])]
    typed: dict[str, Any] = {"columns": COLUMNS, "on_bad_row": "reject"} if side == "typed" else {}
    events = len(requests) * (1 if side == "single" else 100)
    with workplace() as folder, _control_clients.process() as clients:
        described(folder, max_bytes=1 << 33, **typed)
        with gateway(folder) as (port, process):
            log = InboxPlace(inbox_path(str(folder / "state"), INBOX), "a benchmark").log("g0")
            before = process.cpu_times()
            found: Answers = clients.submit(send, port, requests, CONNECTIONS).result()
            until(lambda: log.look().total == events, "all events are in segments")
            after = process.cpu_times()
            took = after.user + after.system - before.user - before.system
        assert sum(found.statuses.values()) == len(requests) and max(found.statuses) < 300, found.statuses
    return events / took


def _answered(ack: str, bucket: Bucket | None) -> list[float]:
    """How long each answer took, ms."""
    requests = [single(number) for number in range(RATE * SECONDS)]
    with workplace() as folder, _control_clients.process() as clients:
        described(folder, bucket, ack=ack)
        with gateway(folder, bucket) as (port, _):
            found: Answers = clients.submit(send, port, requests, CONNECTIONS, RATE).result()
    assert max(found.statuses) < 300, found.statuses
    return [one for times in found.times.values() for one in times]
