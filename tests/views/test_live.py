"""A running job as HTML for a notebook."""

from datetime import timedelta
from xml.etree import ElementTree

import pytest

from spark_ext.model.lifecycle import State
from spark_ext.views.notebook import REASON, LastIncident, live_html
from tests.support.snapshots import T0, job, query, source

BAD = "<script>&\"'"


def words(html: str) -> list[str]:
    found = ElementTree.fromstring(html.replace("&middot;", "\u00b7"))
    return [text.strip() for element in found.iter() for text in (element.text, element.tail) if text and text.strip()]


def test_state_figures_and_queries() -> None:
    first = query(
        "a", rows=1200, epochs=3, last_epoch=8, last_epoch_ms=120, lag_rows=50, lag_at=T0 + timedelta(seconds=9),
        sources=(source("files", 3, 1),),
    )  # fmt: skip
    html = live_html(job(first, query("b", State.CREATED)))
    assert words(html)[:3] == ["flights", "RUNNING", "0:10 · 1,200 rows · 3 epochs · 120 rows/s"]
    assert {"a", "1,200", "3", "8 (120 ms)", "50", "3 of 4", "b", "CREATED"} <= set(words(html))
    assert "width:75%" in html and html.count("<tr") == 3


def test_unknown_figures_have_no_column_and_old_ones_their_age() -> None:
    html = live_html(job(query("a")))
    assert "lag" not in words(html) and "channels finished" not in words(html)
    assert "7, 40 s ago" in words(live_html(job(query("a", lag_rows=7, lag_at=T0), seconds=40)))
    html = live_html(job(query("a", State.CREATED), state=State.CREATED, incarnation=0, started=None))
    assert words(html)[:2] == ["flights", "CREATED"] and "rows/s" not in html


def test_the_rate_is_that_of_the_last_look_and_has_a_plot() -> None:
    running = job(query("a", rows=1000))
    assert "<svg" not in live_html(running, [5.0, 10.0])
    html = live_html(running, [5.0, 10.0, 20.0])
    assert "20 rows/s" in html and 'points="0.0,14' not in html and "at most 20" in html
    ended = live_html(job(query("a", State.FINISHED, rows=1000), state=State.FINISHED), [5.0, 10.0, 20.0])
    assert "100 rows/s" in ended


@pytest.mark.parametrize(("open_", "said"), [(True, "open"), (False, "resolved")])
def test_the_last_incident(open_: bool, said: str) -> None:
    found = LastIncident("failure", "the server closed the connection\nstack", T0, open_)
    html = live_html(job(query("a"), seconds=40), (), found)
    assert f"failure, {said}: the server closed the connection" in words(html) and "40 s ago" in words(html)
    assert "stack" not in html


def test_what_users_wrote_is_escaped_and_cut() -> None:
    snapshot = job(query(BAD, State.FAILED, reason=BAD), job=BAD, error=BAD)
    html = live_html(snapshot, (), LastIncident(BAD, BAD * 99, T0, True))
    assert "<script" not in html and words(html)
    assert len(max(words(html), key=len)) < REASON + len(BAD) + 20
