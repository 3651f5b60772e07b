"""What status, notebook and text say of latencies: nothing in a job that does not measure them."""

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.incarnation import forget
from spark_ext.views.notebook import job_html
from spark_ext.views.recorded import latencies_of
from spark_ext.views.snapshot import LatencySnapshot
from spark_ext.views.status import read_status
from spark_ext.views.style import latency_text
from spark_ext.views.terminal import show_status
from tests.ledger.rows import START, latency, state
from tests.support.snapshots import T0, job, query


def one(source: str, ms: int, *way: str) -> LatencySnapshot:
    return LatencySnapshot(source=source, ms=ms, at=T0, hops=(("q", ms),), way=way, markers=1)


def test_each_source_is_shown_with_its_slowest_way() -> None:
    found = query("q", latencies=(one("orders", 80, "a"), one("orders", 120, "b"), one("rates", 3_500)))
    assert latency_text(found) == "orders 120 ms, rates 3.5 s"
    assert latency_text(query("q")) == ""


def test_a_notebook_has_the_column_only_if_something_is_measured() -> None:
    plain, measured = job(query("q", reason="why")), job(query("p"), query("q", latencies=(one("<s>", 80),)))
    assert "latency" not in job_html(plain) and "<th>reason</th>" in job_html(plain)
    assert "<th>latency</th>" in job_html(measured) and "<td>&lt;s&gt; 80 ms</td>" in job_html(measured)
    for found in (plain, measured):
        rows = job_html(found).split("<tr>")[1:]
        assert len({row.count("<th>") + row.count("<td>") for row in rows}) == 1


def test_a_status_has_what_was_recorded_last_in_the_newest_start(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    first = start_incarnation(ledger, "j")
    LedgerWriter(ledger, first).append([latency(9), state("RUNNING", "q")])
    LedgerWriter(ledger, first).end("it ended")
    assert [found.ms for found in read_status(ledger.uri).query("q").latencies] == [9]
    second = start_incarnation(ledger, "j")
    writer = LedgerWriter(ledger, second)
    later = START + timedelta(seconds=10)
    common: dict[str, Any] = {"incarnation": second.number, "p50_ms": 70, "p95_ms": 95, "p99_ms": 99}
    hops, way = [["p", 30], ["q", 80]], ["x-in"]
    writer.append([latency(250, markers=3, **common), latency(80, markers=7, at=later, hops=hops, way=way, **common)])
    writer.append([latency(90, markers=2, **common), latency(8, "other", **common)])
    try:
        status = read_status(ledger.uri)
        direct, through = status.query("q").latencies
        assert (direct.ms, direct.way, direct.markers) == (250, (), 3), "by the number of markers, not by the order"
        assert through == LatencySnapshot(
            source="s", ms=80, at=later, hops=(("p", 30), ("q", 80)), way=("x-in",), markers=7,
            p50_ms=70, p95_ms=95, p99_ms=99,
        )  # fmt: skip
        assert latencies_of(ledger, second.number).keys() == {"q", "other"}
        (shown,) = json.loads(json.dumps(status.to_json()))["queries"]
        assert [found["ms"] for found in shown["latencies"]] == [250, 80]
        console = Console(file=io.StringIO(), width=200)
        show_status(status, console)
        assert "s 250 ms" in console.file.getvalue()  # type: ignore[attr-defined]
    finally:
        forget(ledger.uri, second.number)
