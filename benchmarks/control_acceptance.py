"""Acceptance of control events: from a request to the answer that says that the event is in the ledger.

The server is a process of its own, as `spark-ext serve` is, and the job does not run. Each client sends its next
request when it has the answer of the one before. "Without a server" is what a program does that has the state
directory: it adds one event after the other to the ledger itself.
"""

from __future__ import annotations

import time

from benchmarks._control import WITHOUT_LIMIT, made, served
from benchmarks._control_clients import posts
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import workplace
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, Request

ROUNDS = 3
REQUESTS = 400  # of each side and round, over all clients
WARM = 80
"""Requests of each client that do not count: a server's first second, in which it creates the table of requests."""
SIDES = {"without a server": 0, "one client": 1, "eight clients": 8}  # number of clients
AIMS = {50: 25.0, 99: 60.0}  # ms by percentile


def run(rounds: int = ROUNDS) -> Figures:
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, clients in SIDES.items():
            times[side] += _through_server(clients) if clients else _directly()
    sides = {side: Sample.of(values, "ms") for side, values in times.items()}
    return [
        Figure(
            f"control_acceptance_{name}_p{percent}",
            f"from a POST to its 202, {side}, p{percent} / {aim:g} ms",
            sides[side].percentile(percent) / aim,
            Aim("<=", 1),
            sides,
            {f"p{one}, ms": {name: round(sample.percentile(one), 1) for name, sample in sides.items()} for one in AIMS},
        )
        for name, side in (("one", "one client"), ("eight", "eight clients"))
        for percent, aim in AIMS.items()
    ]


def _through_server(clients: int) -> list[float]:
    """How long each POST took, ms."""
    with workplace() as folder, served(folder, WITHOUT_LIMIT) as (url, token):
        found = posts(url, token, clients, REQUESTS // clients, warm=WARM)
    assert set(found.statuses) == {202}, found.statuses
    return found.times


def _directly() -> list[float]:
    with workplace() as folder:
        log = ControlLog(made(folder / "state"))
        found = []
        for value in range(-WARM, REQUESTS):
            begin = time.perf_counter()
            (answer,) = log.accept([Request("set_config", value={"key": "direct", "value": value})])
            if value >= 0:
                found.append((time.perf_counter() - begin) * 1000)
            assert isinstance(answer, Accepted), answer
    return found
