"""10,000 events at once from eight clients with one token, while the job runs: what is refused, and what it costs.

Each client has 25 requests under way. Half of the requests set keys of the configuration, half are broadcasts. What
is beyond the limits of the server is answered with 429, and is not sent again. Afterwards every event that was
accepted has to have been obeyed, in the order of acceptance: the broadcasts are what the job's function has seen, in
the order of its epochs, once each.

The clients need the same two cores as the job. So the same burst is also sent to a server of another job, in a process
of its own: that epochs become longer beside it is not the job's own doing.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame

import spark_ext as sx
from benchmarks import _control_clients
from benchmarks._control import JOB, period, recorded, served, with_epochs
from benchmarks._control_clients import Answers
from benchmarks._figures import Aim, Figure, Figures, Sample, beside, in_pairs
from benchmarks._spark import checkpoint_of, session, until, workplace
from spark_ext.jobs.job import Job
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.server.limits import Limits
from spark_ext.spark.logs.spark_log import SparkLog

ROUNDS = 3
REQUESTS = 10_000
CLIENTS = 8
IN_FLIGHT = 25  # requests of a client for whose answers it waits at once
QUIET_S = 40.0
WARM = 30  # number of first epochs that do not count
SETTLING_S = 3.0  # time after each window that belongs to none
SHARE = 0.01
QUIET, ELSEWHERE, BURST = "quiet", "burst at another job", "burst"
SIDES = (QUIET, ELSEWHERE, BURST)


def run(rounds: int = ROUNDS) -> Figures:
    answers: dict[str, list[Answers]] = defaultdict(list)
    with workplace() as folder, session("control_burst") as spark, _control_clients.process() as clients:
        # One task, so one row per epoch.
        reader = spark.readStream.format("datagen").options(uid="in", readers=1, max_rows_per_epoch=1000)
        writer = _seen(reader.load()).writeStream.format("delta_2pc")
        job = sx.Job(spark, JOB, state=folder / "state")
        job.add("q", writer.options(uid="out", path=str(folder / "table"))).start()
        log = SparkLog(str(checkpoint_of(folder / "state")))
        # Imports what the server needs, and lets the first epochs pass.
        with job.serve(show_token=False) as server:
            clients.submit(_control_clients.posts, server.url, server.token or "", 1, 20).result()
        until(lambda: (log.newest_commit() or 0) >= WARM, "the first epochs are committed", job)

        def window(side: str) -> tuple[float, float]:
            found, answered = _window(side, job, folder, clients)
            answers[side] += answered
            time.sleep(SETTLING_S)
            return found

        windows = beside(SIDES, rounds, window)
        last = _all_obeyed(job, folder / "state", answers[BURST])
        job.stop(60)
        epochs = recorded(folder / "state", last)
        _check_seen(folder)
    periods = {side: [period(epochs, *window) for window in found] for side, found in windows.items()}
    return _figures(periods, windows, answers)


def _seen(rows: DataFrame) -> DataFrame:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        for _ in batches:
            pass
        numbers = [event.sequence for event in sx.control.events("burst")]
        yield pa.RecordBatch.from_pydict(
            {"epoch": pa.array([epoch], pa.int64()), "numbers": pa.array([numbers], pa.list_(pa.int64()))}
        )

    return rows.mapInArrow(look, "epoch long, numbers array<long>")


def _window(
    side: str, job: Job, folder: Path, clients: ProcessPoolExecutor
) -> tuple[tuple[float, float], list[Answers]]:
    checkpoint = checkpoint_of(folder / "state")

    def burst(url: str, token: str | None) -> tuple[tuple[float, float], list[Answers]]:
        begin = time.time()
        asked = (url, token or "", CLIENTS, REQUESTS // CLIENTS)
        found = clients.submit(_control_clients.posts, *asked, in_flight=IN_FLIGHT).result()
        assert set(found.statuses) <= {202, 429}, found.statuses
        return with_epochs(checkpoint, begin, time.time()), [found]

    if side == BURST:
        with job.serve(show_token=False) as server:
            return burst(server.url, server.token)
    if side == ELSEWHERE:
        with served(Path(mkdtemp(dir=folder)), Limits()) as (url, token):
            return burst(url, token)
    begin = time.time()
    time.sleep(QUIET_S)
    return with_epochs(checkpoint, begin, time.time()), []


def _all_obeyed(job: Job, state: Path, answers: list[Answers]) -> int:
    """Wait until the last event is acknowledged; check the configuration; returns the first epoch with it."""
    accepted = [one for found in answers for client in found.accepted for one in client]
    last = max(sequence for _, sequence in accepted)
    rows = Ledger(str(state)).table(ControlEventRow).rows()
    assert sorted(row.sequence for row in rows) == list(range(1, len(rows) + 1))
    assert {sequence for _, sequence in accepted} <= {row.sequence for row in rows}
    (event_id,) = (row.event_id for row in rows if row.sequence == last)
    sent = job.control.event(event_id).wait(60)
    epoch = sent.applied["q"]
    assert epoch is not None
    wanted = {
        f"client{number}": max((one for one in client if not one[0] % 2), key=lambda one: one[1])[0]
        for number, client in enumerate(answers[-1].accepted)
        if any(not value % 2 for value, _ in client)
    }
    config = job.control.config("q", epoch)["config"]
    assert {key: config[key] for key in wanted} == wanted
    return epoch


def _check_seen(folder: Path) -> None:
    table = DeltaTable(str(folder / "table")).to_pyarrow_table().to_pylist()
    seen = [number for row in sorted(table, key=lambda row: row["epoch"]) for number in row["numbers"]]
    rows = Ledger(str(folder / "state")).table(ControlEventRow).rows([("kind", "=", "broadcast")])
    assert seen == sorted(row.sequence for row in rows)


def _figures(
    periods: dict[str, list[float]], windows: dict[str, list[tuple[float, float]]], answers: dict[str, list[Answers]]
) -> Figures:
    sides = {side: Sample.of(periods[side], "ms") for side in SIDES}
    pairs = {side: Sample.of(in_pairs(periods[side], periods[QUIET]), "x") for side in (ELSEWHERE, BURST)}
    statuses: Counter[int] = sum((found.statuses for found in answers[BURST]), Counter())
    times = Sample.of([ms for found in answers[BURST] for ms in found.times], "ms")
    notes = {
        "requests": REQUESTS,
        "clients": CLIENTS,
        "in flight of each": IN_FLIGHT,
        "answers": {str(status): count for status, count in sorted(statuses.items())},
        "burst, s": Sample.of([end - begin for begin, end in windows[BURST]], "s").to_json(),
        "POST that was accepted": times.to_json(),
        "its p99, ms": round(times.percentile(99), 1),
        "ratio of each pair of windows to the quiet one": {side: one.to_json() for side, one in pairs.items()},
        "obeyed": "all that were accepted, in their order",
    }
    own = Sample.of(in_pairs(periods[BURST], periods[ELSEWHERE]), "x").median
    what = "time per epoch: during a burst of events / "
    yield Figure("control_burst", f"{what}in quiet", pairs[BURST].median, Aim("<=", 1 + SHARE), sides, notes)
    yield Figure(
        "control_burst_own", f"{what}during the same burst at another job's server", own, Aim("<=", 1 + SHARE), sides,
        notes,
    )  # fmt: skip
    yield Figure(
        "control_burst_answered",
        "share of the requests of bursts that were answered with 202 or 429, and obeyed in order if 202",
        sum(statuses.values()) / (REQUESTS // CLIENTS * CLIENTS * len(answers[BURST])), Aim(">=", 1),
        {"POST that was accepted": times}, notes,
    )  # fmt: skip
