"""The timeline is a pure function of the ledger's rows."""

import io
import json
import random
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spark_ext.views.timeline import DOWN, ENDED, Interval, Timeline, timeline
from spark_ext.views.timeline_view import DisplayTimeline, RichTimeline, bar, to_html

T0 = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def state(operator: str, name: str, seconds: float, incarnation: int = 1, reason: str = "") -> dict[str, Any]:
    return {"operator": operator, "state": name, "since": at(seconds), "incarnation": incarnation, "reason": reason}


def job(event: str, seconds: float, incarnation: int = 1, reason: str = "") -> dict[str, Any]:
    return {"event": event, "at": at(seconds), "incarnation": incarnation, "reason": reason, "lineage": 0}


def epoch(query: str, number: int, seconds: float, rows: int | None, incarnation: int = 1) -> dict[str, Any]:
    own = {"query": query, "lineage": 1, "epoch": number}
    return {**own, "committed_at": at(seconds), "input_rows": rows, "incarnation": incarnation}


def step(query: str, status: str, seconds: float, incarnation: int = 1, kind: str = "final") -> dict[str, Any]:
    return {"kind": kind, "query": query, "epoch": 7, "status": status, "at": at(seconds), "incarnation": incarnation}


def crash_and_finish() -> Timeline:
    """Incarnation 1 is lost 5 s in, and its last row is an epoch at 4 s; 2 begins at 9 s and finishes."""
    return timeline(
        [
            state("", "RUNNING", 1), state("q", "RUNNING", 1), state("", "RUNNING", 10, 2),
            state("q", "RUNNING", 10, 2), state("q", "RESTARTING", 11, 2, "the network"), state("q", "RUNNING", 12, 2),
            state("q", "FINISHING", 14, 2), state("q", "FINISHED", 15, 2), state("", "FINISHED", 15, 2),
        ],
        [job("started", 0), job("started", 9, 2), job("ended", 15.5, 2, "FINISHED")],
        [epoch("q", 0, 2, 10), epoch("q", 1, 4, None), epoch("q", 2, 13, 30, 2)],
        [step("q", "CLOSED", 14.9, 2), step("q", "COMPLETED", 14.5, 2), step("", "COMPLETED", 11, 2, "periodic")],
    )  # fmt: skip


def test_a_crash_and_a_finish_looked_at_from_all_sides() -> None:
    found = crash_and_finish()
    first, second = found.spans
    assert second.of("q") == (
        Interval("q", "RUNNING", at(10), at(11)), Interval("q", "RESTARTING", at(11), at(12), "the network"),
        Interval("q", "RUNNING", at(12), at(14)), Interval("q", "FINISHING", at(14), at(15)),
        Interval("q", "FINISHED", at(15), at(15)),
    )  # fmt: skip
    assert (second.since, second.until, second.outcome) == (at(9), at(15.5), "FINISHED")
    assert (first.until, first.outcome) == (at(4), "lost")
    assert first.of("q") == (Interval("q", "RUNNING", at(1), at(4)),)
    assert [(down.state, down.since, down.until) for down in found.downs] == [(DOWN, at(4), at(9))]
    seconds = found.seconds(at(100))
    assert (seconds["q", "RUNNING"], seconds["q", "RESTARTING"], seconds["", DOWN]) == (3 + 1 + 2, 1, 5)
    assert (dict(first.epochs), dict(first.rows)) == ({"q": 2}, {"q": 10})
    assert (dict(second.epochs), dict(second.rows)) == ({"q": 1}, {"q": 30})
    assert not first.finals
    assert [name for name, _ in second.finals[0].steps] == ["COMPLETED", "CLOSED"]


def test_no_downtime_while_a_driver_lives_or_after_an_end() -> None:
    found = timeline([state("q", "RUNNING", 1)], [job("started", 0)], alive=frozenset({1}))
    assert found.spans[0].until is None
    assert found.spans[0].of("q")[0].seconds(at(11)) == 10
    assert not found.downs
    states = [state("q", "CANCELED", 1), state("q", "RUNNING", 50, 2)]
    jobs = [job("started", 0), job("ended", 2, 1, "CANCELED"), job("started", 50, 2)]
    assert not timeline(states, jobs, alive=frozenset({2})).downs


def test_no_rows_make_an_empty_timeline() -> None:
    assert timeline([], []).spans == ()
    assert to_html(timeline([], [])) == ""


names = st.sampled_from(["RUNNING", "RESTARTING", "FINISHING", "FINISHED", "CANCELED"])
rows_of = st.lists(
    st.builds(state, st.sampled_from(["", "a", "b"]), names, st.integers(0, 1000), st.integers(1, 4)), max_size=40
)


def test_a_row_that_is_there_twice_counts_once() -> None:
    rows = [state("q", "RUNNING", 1), state("q", "FINISHED", 5)]
    jobs = [job("started", 0), job("ended", 6)]
    epochs, steps = [epoch("q", 0, 2, 10)], [step("q", "COMPLETED", 4), step("q", "CLOSED", 5)]
    assert timeline(rows * 2, jobs * 2, epochs * 2, steps * 2) == timeline(rows, jobs, epochs, steps)


def test_an_operator_is_one_line_however_often_its_state_has_changed() -> None:
    """Neighbours of one state are one stay; many stays are named once each, with the whole time."""

    def line(*states: tuple[str, float]) -> str:
        rows = [state("q", name, seconds, reason=f"{seconds}") for name, seconds in states]
        found = timeline(rows, [job("started", 0), job("ended", 100, 1, "CANCELED")])
        console = Console(file=io.StringIO(), width=200)
        with console.capture() as said:
            console.print(RichTimeline(found, at(100)))
        return next(one for one in said.get().splitlines() if one.startswith("q ")).rstrip()

    joined = line(("RUNNING", 0), ("RUNNING", 10), ("RUNNING", 20), ("RESTARTING", 40), ("RUNNING", 50))
    assert joined.endswith("RUNNING 40.0 s → RESTARTING 10.0 s → RUNNING 50.0 s")
    many = [("RESTARTING" if second % 2 else "RUNNING", float(second)) for second in range(27)]
    assert line(*many).endswith("RUNNING 1:27 min (14 times), RESTARTING 13.0 s (13 times)")


@given(rows_of, st.randoms(use_true_random=False))
def test_the_order_of_rows_is_ignored_and_none_overlap(rows: list[dict[str, Any]], shuffler: random.Random) -> None:
    unique = list({(row["operator"], row["since"], row["incarnation"]): row for row in rows}.values())
    found = timeline(unique, [])
    shuffler.shuffle(unique)
    assert timeline(unique, []) == found
    for span in found.spans:
        for operator in span.operators:
            own = span.of(operator)
            assert all(part.until is not None and part.until >= part.since for part in own)
            assert [part.until for part in own[:-1]] == [part.since for part in own[1:]]
            assert own[-1].state not in ENDED or own[-1].until == own[-1].since


def printed(shown: Any, width: int = 200) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(shown)
    return out.getvalue()


def test_a_timeline_is_shown_whole_in_each_form() -> None:
    found = crash_and_finish()
    text = printed(RichTimeline(found, at(100)))
    assert "DOWN 5.0 s: incarnation 1 was lost" in text
    assert "RUNNING 1.0 s → RESTARTING 1.0 s → RUNNING 2.0 s → FINISHING 1.0 s → FINISHED" in text
    assert "after epoch 7: COMPLETED, CLOSED +400 ms" in text
    assert "(1 epoch, 30 rows)" in text
    words = " ".join(printed(RichTimeline(found, at(100)), 60).split())
    assert "…" not in words and "FINISHED (1" in words and "COMPLETED, CLOSED +400 ms" in words
    shown = DisplayTimeline(found.spans, found.downs)
    assert "DOWN 5.0 s: incarnation 1 was lost" in printed(shown)
    assert shown._repr_html_() == to_html(found)
    assert shown.to_json() == found.to_json()
    plain = json.loads(json.dumps(found.to_json()))
    given = {"outcome": "FINISHED", "down_before": 5, "since": at(9).isoformat()}
    assert plain[1] == {**plain[1], **given}


@pytest.mark.parametrize("end", [None, "FAILED", "CANCELED", "FINISHED"])
def test_a_job_that_nobody_has_started_again_is_down_until_now(end: str | None) -> None:
    ends = [] if end is None else [job("ended", 4, 1, end)]
    found = timeline([state("q", "RUNNING", 1), state("q", "RUNNING", 4)], [job("started", 0), *ends])
    for shown in (printed(RichTimeline(found, at(100))), to_html(found, at(100))):
        assert ("DOWN 1:36 min: incarnation 1" in shown) == (end in (None, "FAILED")), shown


def test_a_bar_is_divided_by_time() -> None:
    states = [state("q", "RUNNING", 0), state("q", "FINISHING", 75)]
    found = timeline(states, [job("started", 0), job("ended", 100, 1, "CANCELED")])
    drawn = bar(found.spans[0], "q", at(100), width=40)
    assert len(drawn.plain) == 40
    assert [str(span.style) for span in drawn.spans].count("green") == 30


def test_html_escapes_what_users_wrote() -> None:
    page = to_html(timeline([state("q", "RUNNING", 0, reason="<script>'\"")], [job("started", 0)]), at(1))
    assert "<script>" not in page
    assert "&lt;script&gt;&#x27;&quot;" in page
