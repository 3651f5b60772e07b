"""From the acceptance of an event to the epoch that obeys it, in a running job.

Small epochs run one after the other, made as long as those of many jobs by a function that pauses. Events are sent
over HTTP, at any time within an epoch. An event is in time if it is in force in the first epoch that was planned 100
ms after the answer to its request, or before; an epoch is planned when Spark has written its offsets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

import spark_ext as sx
from benchmarks._control import JOB, first_planned
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import checkpoint_of, committed_at, session, until, workplace
from spark_ext.spark.logs.spark_log import SparkLog
from spark_ext.steering.control import Control

ROUNDS = 4
EVENTS = 50  # of a round
LATER_S = 0.1  # time after the answer from which each epoch that is planned has to obey the event
PAUSE_S = 0.1  # of the function, in each epoch
WARM = 20  # epochs before the first event


def run(rounds: int = ROUNDS) -> Figures:
    pause = PAUSE_S

    def slow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(pause)
        yield from batches

    in_time: list[bool] = []
    times: dict[str, list[float]] = {"answered": [], "planned": [], "committed": [], "acknowledged": []}
    epochs: list[float] = []
    with workplace() as folder, session("control_applied") as spark:
        rows = spark.readStream.format("datagen").options(uid="in", max_rows_per_epoch=1000).load()
        writer = rows.mapInArrow(slow, rows.schema).writeStream.format("delta_2pc")
        job = sx.Job(spark, JOB, state=folder / "state")
        job.add("q", writer.options(uid="out", path=str(folder / "table"))).start()
        checkpoint = checkpoint_of(folder / "state")
        until(lambda: (SparkLog(str(checkpoint)).newest_commit() or 0) >= WARM, "the first epochs are committed", job)
        with job.serve(show_token=False) as server, sx.Control(server.url, server.token) as control:
            for number in range(rounds * EVENTS):
                time.sleep(random.uniform(0.1, 0.4))
                one = _event(control, checkpoint, number)
                in_time.append(one.pop("in time") > 0)
                epochs.append(one.pop("epoch"))
                for name, ms in one.items():
                    times[name].append(ms)
        job.stop(60)
    sides = {name: Sample.of(values, "ms") for name, values in times.items()}
    epoch = Sample.of(epochs, "ms")
    yield Figure(
        "control_applied",
        f"share of events that the first epoch planned {LATER_S * 1000:g} ms after the answer obeys, or one before",
        sum(in_time) / len(in_time),
        Aim(">=", 0.99),
        sides,
        {
            "meaning": "from the request to its answer; from the answer to the plan of the first epoch with the "
            "event, to its commit, and until it is acknowledged",
            "epoch": epoch.to_json(),
            "p99, ms": {name: round(sample.percentile(99), 1) for name, sample in sides.items()},
            "late": in_time.count(False),
        },
    )


def _event(control: Control, checkpoint: Path, number: int) -> dict[str, float]:
    """Send an event; ms, except for `in time`."""
    begin = time.time()
    sent = control.set("number", number)
    answered = time.time()
    sent.wait(60)
    applied = sent.applied["q"]
    assert applied is not None
    planned: dict[int, float] = {}

    def there() -> int | None:
        planned.update(_planned(checkpoint))
        return first_planned(planned, answered + LATER_S)

    # By then the event is acknowledged, so its epoch is committed; the one that it is compared with may come later.
    until(there, "an epoch was planned after that time")
    wanted = there()
    assert wanted is not None
    committed = committed_at(checkpoint, applied)
    state = sent.state
    return {
        "answered": 1000 * (answered - begin), "planned": 1000 * (planned[applied] - answered),
        "committed": 1000 * (committed - answered), "acknowledged": state.acknowledged_ms or 0.0,
        "in time": float(applied <= wanted), "epoch": 1000 * (committed - committed_at(checkpoint, applied - 1)),
    }  # fmt: skip


def _planned(checkpoint: Path) -> dict[int, float]:
    """When each epoch was planned whose offsets Spark still has."""
    found = {}
    for path in (checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            try:
                found[int(path.name)] = path.stat().st_mtime
            except FileNotFoundError:
                continue
    return found
