"""The web page of a job of 500 queries with 100,000 epochs: until it can be used, and while its table is scrolled.

The browser is a real one, without a screen; server and browser share this machine. The first view is measured from the
token to the first frame with rows of queries: reading the ledger, making the document, sending, parsing and drawing. A
frame is late if it comes more than 25 ms after the one before it.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._figures import Aim, Figure, Figures, Sample
from benchmarks._spark import workplace
from spark_ext.ledger import Ledger, start_incarnation
from spark_ext.ledger.schema import DefinitionRow, EpochRow, ExecutionStateRow, FinishedRow, IncidentRow
from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role
from spark_ext.server.server import ControlServer
from spark_ext.views.page.facts import FactsReader
from tests.support import browser

ROUNDS = 5
QUERIES = 500
EPOCHS = 100_000
FIRST_MS = 1_000.0
FRAME_MS = 25.0
SCROLLED = 120  # frames of a round in which the table is scrolled
COMMIT = 10_000  # epochs of one commit
HOURS = 24  # over which time the epochs are spread
SCROLL = """
frames => new Promise((resolve) => {
  const table = document.querySelector('.scroll:has(.virtual)');
  const step = (table.scrollHeight - table.clientHeight) / frames;
  const times = [];
  let before = performance.now();
  const frame = (now) => {
    times.push(now - before);
    before = now;
    table.scrollTop += step;
    if (times.length <= frames) requestAnimationFrame(frame); else resolve(times.slice(1));
  };
  requestAnimationFrame((now) => { before = now; requestAnimationFrame(frame); });
})
"""


def run(rounds: int = ROUNDS) -> Figures:
    """Measure this many rounds, after one that does not count."""
    if reason := browser.missing():
        raise RuntimeError(f"{reason}: install one, such as Debian's chromium")
    first: list[float] = []
    again: list[float] = []
    frames: list[float] = []
    rows = 0
    with workplace() as folder, browser.browser() as chromium:
        state = made(folder / "state", QUERIES, EPOCHS)
        read = _ms(lambda: FactsReader(Ledger(state)).read())
        for number in range(-1, rounds):
            # A server that has read nothing yet.
            with ControlServer(state) as server:
                cold, page = _opened(chromium, server)
                scrolled = page.evaluate(SCROLL, SCROLLED)
                rows = page.locator("table.virtual tbody tr[data-id]").count()
                page.context.close()
                warm, page = _opened(chromium, server)
                page.context.close()
            if number >= 0:
                first.append(cold)
                again.append(warm)
                frames += scrolled
    seen, moved = Sample.of(first, "ms"), Sample.of(frames, "ms")
    late = sum(frame > FRAME_MS for frame in frames) / len(frames)
    yield Figure(
        "page_first_view",
        f"the first view of {QUERIES} queries and {EPOCHS:,} epochs, from the token to the frame / {FIRST_MS:g} ms",
        seen.median / FIRST_MS, Aim("<", 1), {"first view": seen, "second visitor": Sample.of(again, "ms")},
        {"reading the ledger alone, ms": round(read, 1)},
    )  # fmt: skip
    yield Figure(
        "page_scrolling", f"the 95th percentile of a frame while all {QUERIES} queries are scrolled / {FRAME_MS:g} ms",
        moved.percentile(95) / FRAME_MS, Aim("<", 1), {"frame": moved},
        {"share of late frames": round(late, 4), "rows in the document at the end": rows},
    )  # fmt: skip


def _opened(chromium: Any, server: ControlServer) -> tuple[float, Any]:
    """How long it takes from the token to the first frame with rows, ms; and the page."""
    page = chromium.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto(server.url)
    page.fill("#token", server.token or "")
    took = page.evaluate(
        """() => new Promise((resolve) => {
          const begin = performance.now();
          const look = () => document.querySelector('table.virtual tr[data-id] .badge')
            ? requestAnimationFrame(() => resolve(performance.now() - begin)) : requestAnimationFrame(look);
          document.querySelector('button.primary').click();
          look();
        })"""
    )
    return float(took), page


def _ms(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def made(folder: Path, queries: int, epochs: int) -> str:
    """Write the state; this process is its driver. Every fourth query begins a chain of exchanges."""
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
                    query=uids[number % queries], query_id="0", epoch=number // queries, lineage=1, incarnation=1,
                    input_rows=int(rows[number]), committed_at=begin + timedelta(seconds=float(times[number])),
                    duration_ms=int(lasted[number]),
                    offsets=[{"uid": f"{uids[number % queries]}-in", "kind": "channels", "running": {"a": {"at": 1}}}],
                )
                for number in range(first, min(epochs, first + COMMIT))
            ]
        )  # fmt: skip
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
                incident_id=f"{place:08x}", at=begin + timedelta(minutes=place * 5), job="many", incarnation=1,
                operator=f"job 'many', query '{uids[place % queries]}'", type="failure",
                labels={"type": "NETWORK", "origin": "library"}, what="the server closed the connection",
                evidence={"stack": "at some.Class.method(File.java:1)\n" * 40}, action="restart 1 in 100 ms",
                severity="WARNING", fingerprint="f",
            )
            for place in range(200)
        ]
    )  # fmt: skip
    return str(folder)


def _definition(number: int, at: datetime) -> DefinitionRow:
    uid = f"query-{number:03}"
    before = number % 4 != 0
    source = OperatorDefinition(
        f"{uid}-in", Role.SOURCE, "exchange" if before else "files",
        {"path": f"exchange-{number - 1:03}" if before else f"data/{number}"},
    )  # fmt: skip
    sink = OperatorDefinition(f"{uid}-out", Role.SINK, "exchange_2pc", {"path": f"exchange-{number:03}"})
    return DefinitionRow(
        query=uid, lineage=1, incarnation=1, at=at, definition=QueryDefinition((source, sink)).to_json()
    )


def _state(operator: str, state: str, since: datetime) -> ExecutionStateRow:
    return ExecutionStateRow(operator=operator, state=state, since=since, incarnation=1, reason="")
