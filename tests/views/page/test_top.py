"""What `top` says of the time of epochs."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from spark_ext.views.snapshot import GATEWAY_STATES, InboxSnapshot
from spark_ext.views.style import inbox_text
from spark_ext.views.terminal import mostly, top_view


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, ""), ({"planning": 0}, ""), ({"planning": 10, "user_code": 190, "commit": 100}, "user code 63%"),
        ({"reading": 1, "other": 0}, "reading 100%"),
    ],
)  # fmt: skip
def test_the_longest_part_with_its_share(parts: dict[str, int], said: str) -> None:
    assert mostly(parts) == said


def query(uid: str, **parts: int) -> dict[str, Any]:
    none = dict.fromkeys(("rate", "last_epoch", "last_ms", "committed_at", "exchange"))
    lag: dict[str, Any] = {"rows": None, "at": None, "sources": []}
    return {
        "uid": uid,
        "state": "RUNNING",
        "epochs": 1,
        "reason": "",
        "parts": parts,
        "lag": lag,
        "inboxes": [],
        **none,
    }


def shown(*queries: dict[str, Any]) -> str:
    job = {"name": "j", "state": "RUNNING", "incarnation": 1, "epochs": 1, "rows": 1, "rate": None, "silent": False}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(top_view({"at": 100_000, "job": job, "queries": list(queries), "incidents": []}))
    return console.export_text()


def test_a_column_is_there_if_anything_is_known() -> None:
    assert "mostly" not in shown(query("a"))
    with_one = shown(query("a"), query("b", state=5))
    assert "mostly" in with_one and "state 100%" in with_one


def test_the_lag_is_shown_with_its_age_where_any_is_known() -> None:
    assert "lag" not in shown(query("a"))
    late = {**query("b"), "lag": {"rows": 1_200, "at": 60_000, "sources": []}}
    assert "1,200, 40 s ago" in shown(query("a"), late)
    assert "ago" not in shown({**late, "state": "FAILED"}).partition("1,200")[2]


def test_how_full_an_exchange_is_stands_beside_its_writer() -> None:
    assert "exchange" not in shown(query("a"))
    full = {**query("b"), "exchange": {"name": "x", "rows": 103, "bytes": 1_858, "stored_bytes": 3 << 20}}
    assert "x: 103 rows, 1.8 KiB; 3.0 MiB on disk" in shown(query("a"), full)


def test_what_has_come_into_an_inbox_stands_beside_its_reader() -> None:
    assert "inbox" not in shown(query("a"))
    states = dict.fromkeys(GATEWAY_STATES, 0)
    quiet = InboxSnapshot(
        name="x", gateways=states, accepted=0, acknowledged=0, repeats=0, conflicts=0, old=0, rejected={}, bytes=0,
        max_bytes=1 << 30, oldest_s=None, ack_p50_ms=None, ack_p99_ms=None,
    )  # fmt: skip
    assert inbox_text(quiet.to_json()) == "no gateway; 0 B of 1.0 GiB; 0 events"
    busy = replace(
        quiet, gateways={**states, "accepting": 2, "silent": 1}, acknowledged=1_200, repeats=1, conflicts=2,
        rejected={"401": 2, "429": 1}, bytes=3 << 20, oldest_s=62.0, ack_p50_ms=2, ack_p99_ms=4,
    )  # fmt: skip
    said = "x: 2 accepting, 1 silent; 3.0 MiB of 1.0 GiB, oldest 1:02 min; 1,200 events, 1 repeat, 2 conflicts, "
    said += "p99 4 ms; 3 rejected"
    assert said in shown(query("a"), {**query("b"), "inboxes": [busy.to_json()]})
