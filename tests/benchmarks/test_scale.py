"""The growth curves: their histories, and what is made of their results; the runs themselves are started by hand."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks._control import made
from benchmarks.scale import history, table
from benchmarks.scale.measure import CURVES
from spark_ext.exchange.arrow.log import ArrowLog
from spark_ext.exchange.entries import Entry, EntryKind, Segment
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.storage import LocalFolder


def results(curve: str, power: float, name: str = "cpu_ms", constant: float = 0.0) -> list[dict[str, Any]]:
    return [{"curve": curve, "size": size, name: constant + 5.0 * size**power} for size in CURVES[curve].sizes]


def row(text: str, what: str) -> dict[str, str]:
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines())
    return next(dict(zip(head, cells, strict=True)) for cells in rows if cells[0] == what)


@pytest.mark.parametrize(
    ("curve", "power", "shown"),
    [
        ("epochs", 0.05, "0.05"),
        ("epochs", 0.2, "**0.20**"),  # an epoch behind a longer history is to cost the same
        ("queries", 1.0, "1.00"),
        ("queries", 1.2, "**1.20**"),
    ],
)
def test_what_grows_faster_than_it_may_is_a_fault(curve: str, power: float, shown: str) -> None:
    found = row(table.exponents(results(curve, power)), CURVES[curve].what)
    assert found["CPU, ms"] == shown
    assert found["faults"] == ("1" if "*" in shown else "")


def test_a_start_may_grow_as_the_history_does() -> None:
    found = row(table.exponents(results("epochs", 1.0, "start_cpu_s")), CURVES["epochs"].what)
    assert (found["start, CPU s"], found["faults"]) == ("1.00", "")


def test_the_exponent_is_that_of_the_upper_part() -> None:
    # With a constant part that only small sizes show.
    found = row(table.exponents(results("columns", 1.0, constant=1_000.0)), CURVES["columns"].what)
    assert 0.7 < float(found["CPU, ms"]) < 0.95


def test_the_outlook_follows_the_curve() -> None:
    text = table.outlook(results("queries", 1.0, "cpu_ms"))
    assert text == "* **4,800 queries in one job**: an epoch takes 24 s of CPU time."


def test_the_page_shows_what_was_measured(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text("before\n<!-- scale figures: begin -->\nold\n<!-- scale figures: end -->\nbehind\n")
    table.write_page(results("queries", 1.0), page)
    assert "| queries in one job | 48 | 240 |" in page.read_text()
    assert "old" not in page.read_text() and page.read_text().endswith("behind\n")


def test_a_history_has_the_rows_that_it_says(tmp_path: Path) -> None:
    made(tmp_path)
    last = history.incidents(tmp_path, 30)
    incidents = Ledger(str(tmp_path)).table(IncidentRow)
    rows = {one.incident_id: one for one in incidents.rows()}
    assert len(rows) == 30 and last.incident_id == max(rows)  # type: ignore[attr-defined]
    assert rows[max(rows)].evidence["stack"].startswith("at some.Class.method(File.java:30)")
    with incidents.opened() as handle:
        assert handle is not None and len(handle.file_uris()) == 1


def test_an_exchange_gets_entries_with_rows_of_their_own(tmp_path: Path) -> None:
    exchange = tmp_path / "exchanges" / "hop"
    log = ArrowLog(LocalFolder(exchange / "log"), "test")
    (exchange / "data").mkdir(parents=True)
    (exchange / "data" / "i1-e0-p0-a0-00000000.arrow").write_bytes(b"rows")
    given = Entry(EntryKind.EPOCH, rows=(3,), segments=(Segment("i1-e0-p0-a0-00000000.arrow", 4, ()),), total=3)
    log.append(lambda state: given, "0")
    history.entries(tmp_path, 5)
    state = ArrowLog(LocalFolder(exchange / "log"), "test").look()
    assert (state.last, state.total) == (5, 18)
    names = {one.segments[0].name for number in range(6) if (one := log.entry(number))}
    assert len(names) == 6 and all((exchange / "data" / name).read_bytes() == b"rows" for name in names)
