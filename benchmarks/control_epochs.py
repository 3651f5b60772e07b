"""What it costs a job that others may control and watch it: time per epoch, in windows of one run.

The job runs small epochs one after the other, from `datagen` into `delta_2pc`. What is different from window to window:

* `without a server`: nobody asks.
* `polled`: `job.serve()`, a client that lists the events every second, and one that waits for an event (a long poll).
* `an event a second`: the same, and a client that sets a key every second.
* `without looks`: no server, and the job's coordinator does not look at control events. Planners do.

The clients are a process of their own on the same two cores, so their work counts.
"""

from __future__ import annotations

import math
import time
from statistics import median

import spark_ext as sx
from benchmarks import _control_clients
from benchmarks._control import JOB, period, recorded, with_epochs
from benchmarks._figures import Aim, Figure, Figures, Sample, beside, in_pairs
from benchmarks._spark import checkpoint_of, session, until, workplace
from spark_ext.jobs.controlling import controller
from spark_ext.spark.logs.spark_log import SparkLog

ROUNDS = 8
WINDOW_S = 8.0
SETTLING_S = 2.0  # time before each window, in which servers and clients start
WARM = 30  # number of first epochs that do not count
WITHOUT, POLLED, EVENTS, NO_LOOKS = "without a server", "polled", "an event a second", "without looks"
SIDES = (WITHOUT, POLLED, EVENTS, NO_LOOKS)
SHARE, ADDED_MS = 0.01, 3.0  # by how much a server that is polled may make epochs longer


def run(rounds: int = ROUNDS) -> Figures:
    with workplace() as folder, session("control_epochs") as spark, _control_clients.process() as clients:
        rows = spark.readStream.format("datagen").options(uid="in", channels=2, max_rows_per_epoch=1000).load()
        late = spark.readStream.format("datagen").options(uid="late-in", rows=1).load()
        job = sx.Job(spark, JOB, state=folder / "state")
        for name, frame, after in (("q", rows, ()), ("late", late, ("q",))):
            writer = frame.writeStream.format("delta_2pc").options(uid=f"{name}-out", path=str(folder / name))
            job.add(name, writer, after=after)
        job.start()
        log = SparkLog(str(checkpoint_of(folder / "state")))
        # The query that it is for begins when the other one has ended, which it never does: the event stays open.
        open_event = job.control.set("waits", 1, query="late").id
        posted: list[float] = []
        answers = 0

        def window(side: str) -> tuple[float, float]:
            nonlocal answers
            seconds = SETTLING_S + WINDOW_S
            looks = controller.POLL_EVERY
            controller.POLL_EVERY = math.inf if side == NO_LOOKS else looks
            try:
                if side not in (POLLED, EVENTS):
                    time.sleep(seconds)
                    end = time.time()
                else:
                    with job.serve(show_token=False) as server:
                        asked = (server.url, server.token or "", open_event, seconds)
                        found = clients.submit(_control_clients.poll, *asked, send=side == EVENTS).result()
                        end = time.time()
                    assert set(found.statuses) <= {200, 202}, found.statuses
                    posted.extend(found.times)
                    answers += found.statuses.total()
            finally:
                controller.POLL_EVERY = looks
            return with_epochs(checkpoint_of(folder / "state"), end - WINDOW_S, end)

        window(EVENTS)  # imports what the server needs
        until(lambda: (log.newest_commit() or 0) >= WARM, "the first epochs are committed", job)
        posted.clear()
        windows = beside(SIDES, rounds, window)
        found = recorded(folder / "state", log.newest_commit() or 0)
        job.stop(60)
    return _figures({side: [period(found, *one) for one in windows[side]] for side in SIDES}, posted, answers)


def _figures(periods: dict[str, list[float]], posted: list[float], answers: int) -> Figures:
    sides = {side: Sample.of(values, "ms") for side, values in periods.items()}
    added = [one - other for one, other in zip(periods[POLLED], periods[WITHOUT], strict=True)]
    pairs = {side: Sample.of(in_pairs(periods[side], periods[WITHOUT]), "x") for side in SIDES[1:]}
    notes = {
        "ratio of each pair of windows to that without a server": {side: one.to_json() for side, one in pairs.items()},
        "added in each pair by a server that is polled": Sample.of(added, "ms").to_json(), "answers to polls": answers,
        "POST beside epochs": Sample.of(posted, "ms").to_json(), "window, s": WINDOW_S,
    }  # fmt: skip
    what = "time per epoch: with a server that is polled / without; the median pair of windows"
    yield Figure("control_epochs", what, pairs[POLLED].median, Aim("<=", 1 + SHARE), sides, notes)
    yield Figure(
        "control_epochs_added",
        f"time that a server that is polled adds to an epoch, in the median pair / {ADDED_MS:g} ms",
        median(added) / ADDED_MS, Aim("<=", 1), sides, notes,
    )  # fmt: skip
    yield Figure(
        "control_epochs_looks", "time per epoch: without a server / without the coordinator's looks at control events",
        1 / pairs[NO_LOOKS].median, Aim("<=", 1 + SHARE), sides, notes,
    )  # fmt: skip
