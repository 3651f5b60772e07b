"""The web page of a job of 500 queries with 100,000 epochs: until it can be used, and while its table is scrolled.

The browser is a real one, without a screen; server and browser share this machine. The first view is measured from the
token to the first frame with rows of queries: reading the ledger, making the document, sending, parsing and drawing. A
frame is late if it comes more than 25 ms after the one before it.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks._figures import Aim, Figure, Sample
from benchmarks._page_state import made
from benchmarks._spark import workplace
from spark_ext.ledger import Ledger
from spark_ext.server.server import ControlServer
from spark_ext.views.page.facts import FactsReader
from tests.support import browser

ROUNDS = 5
QUERIES = 500
EPOCHS = 100_000
FIRST_MS = 1_000.0
FRAME_MS = 25.0
SCROLLED = 120
"""Frames of a round in which the table is scrolled."""

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


def run(rounds: int = ROUNDS) -> list[Figure]:
    """Measure this many rounds, after one that does not count.

    Raises:
        RuntimeError: this machine has no browser.
    """
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
    return [
        Figure(
            "page_first_view",
            "page",
            f"the first view of {QUERIES} queries and {EPOCHS:,} epochs, from the token to the frame / {FIRST_MS:g} ms",
            seen.median / FIRST_MS,
            Aim("<", 1),
            {"first view": seen, "second visitor": Sample.of(again, "ms")},
            {"reading the ledger alone, ms": round(read, 1)},
        ),
        Figure(
            "page_scrolling",
            "page",
            f"the 95th percentile of a frame while all {QUERIES} queries are scrolled / {FRAME_MS:g} ms",
            moved.percentile(95) / FRAME_MS,
            Aim("<", 1),
            {"frame": moved},
            {"share of late frames": round(late, 4), "rows in the document at the end": rows},
        ),
    ]


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
