"""More than an inbox can take, and more than it should have to remember.

* `push_refused`: clients send all that they can for a minute, and no job reads. Once `MOST` bytes are waiting, requests
  are refused with 429. Afterwards each event that was acknowledged has to be in the log.
* `push_identities`: the memory of a process that knows ten million identities, and decides about events.
"""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from benchmarks import _control_clients
from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._push import Answers, described, gateway, saved, send, single
from benchmarks._spark import workplace
from spark_ext.ingest.decisions import Decisions, NewEntry
from spark_ext.ingest.description import DAY
from spark_ext.storage import LocalFolder
from tests.chaos.push_job import INBOX

ROUNDS = 1
SECONDS = 60
CONNECTIONS = 64
REQUESTS = 200_000
MOST = 4 << 20
WITHIN = 50.0  # a refusal, ms
MEMORY = 256.0  # of the gateway, MB
IDENTITIES = 10_000_000
BATCH = 50_000  # in an entry
REMEMBERED = 200.0  # MB for these


def run(rounds: int = ROUNDS) -> Figures:
    refused: list[float] = []
    memory: list[float] = []
    remembered: list[float] = []
    shares = []
    for _ in range(rounds):
        with workplace() as folder, _control_clients.process() as clients:
            described(folder, max_bytes=MOST, max_body=MOST // 4)
            requests = [single(number) for number in range(REQUESTS)]
            with gateway(folder) as (port, process), _watched(process, memory):
                found: Answers = clients.submit(send, port, requests, CONNECTIONS, None, SECONDS).result()
            assert set(found.statuses) <= {202, 429}, found.statuses
            refused += found.times[429]
            kept = saved(folder / "state" / "inboxes" / INBOX)
            shares.append(sum(number in kept for number, _ in found.acknowledged) / len(found.acknowledged))
        remembered.append(_remembered())
    times, late = Sample.of(refused, "ms"), Sample.of(refused, "ms").percentile(99)
    notes = {"seconds": SECONDS, "max_bytes": MOST, "connections": CONNECTIONS}
    what = f"from a request to its 429, p99 / {WITHIN:g} ms"
    yield Figure("push_refused", what, late / WITHIN, Aim("<=", 1), {"429": times}, notes)
    what, sides = "share of the acknowledged events that are in the log", {"kept": Sample.of(shares, "of all")}
    yield Figure("push_refused_kept", what, min(shares), Aim(">=", 1), sides, notes)
    what, sides = f"most memory of the gateway / {MEMORY:g} MB", {"gateway": Sample.of(memory, "MB")}
    yield Figure("push_refused_memory", what, max(memory) / MEMORY, Aim("<=", 1), sides, notes)
    knows = Sample.of(remembered, "MB")
    yield Figure(
        "push_identities", f"memory for {IDENTITIES:,} identities / {REMEMBERED:g} MB", knows.median / REMEMBERED,
        Aim("<=", 1), {"memory": knows},
    )  # fmt: skip


@contextmanager
def _watched(process: psutil.Process, found: list[float]) -> Iterator[None]:
    """Meanwhile the memory of a gateway is noted, MB."""
    stopped = threading.Event()

    def watch() -> None:
        while True:
            found.append(process.memory_info().rss / 1e6)
            if stopped.wait(0.5):
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _remembered() -> float:
    """What a process that decides needs more than one that knows no identity, MB."""
    with workplace() as folder:
        _alone(_decide, folder, IDENTITIES)
        return _alone(_know, folder) - _alone(_know, folder / "empty")


def _alone(function: Callable[..., float], *arguments: Any) -> float:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _entry(number: int, rows: int) -> NewEntry:
    identities = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), rows, [None, pa.py_buffer(secrets.token_bytes(16 * rows))]
    )
    hashes = pa.array(np.arange(rows, dtype=np.uint32))
    at = pa.array([int(time.time() * 1e6)] * rows, pa.timestamp("us", "UTC"))
    texts, numbers, old = pa.nulls(rows, pa.string()), pa.nulls(rows, pa.int64()), pa.repeat(pa.scalar(False), rows)
    return NewEntry("g", number, identities, hashes, texts, numbers, at, old)


def _decisions(folder: Path) -> Decisions:
    return Decisions(LocalFolder(folder / "decisions"), 7 * DAY, "a benchmark")


def _decide(folder: Path, identities: int) -> float:
    decisions = _decisions(folder)
    for number in range(-(-identities // BATCH)):
        decisions.cover([_entry(number, BATCH)])
    return 0.0


def _know(folder: Path) -> float:
    """Resident memory after decisions about a few more events, MB."""
    decisions = _decisions(folder)
    for number in range(1_000_000, 1_000_010):
        decisions.cover([_entry(number, 1000)])
    return float(psutil.Process().memory_info().rss / 1e6)
