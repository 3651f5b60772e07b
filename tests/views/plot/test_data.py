"""What the plots of a job show."""

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.ledger import Ledger
from spark_ext.views.page.document import page
from spark_ext.views.page.epochs import UNKNOWN
from spark_ext.views.page.facts import FactsReader
from spark_ext.views.plot.data import BARS, SHOWN, PlotKind, Plots, _broken, plots, time_text
from tests.support.page_states import shop


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    state = shop(tmp_path_factory.mktemp("shop") / "state", hours=0.2)
    return page(FactsReader(Ledger(state)).read(), datetime.now(timezone.utc))


def series(at: list[int], **columns: list[int]) -> dict[str, list[int]]:
    size = len(at)
    given = {"epochs": [1] * size, "rows": [10] * size, "lag": [], **columns}
    ms = given.pop("ms", [100] * size)
    return {"at": at, "least": ms, "greatest": ms, "mean": ms, **given}


def made(series_: dict[str, dict[str, list[int]]], **parts: Any) -> dict[str, Any]:
    return {
        "at": 1_000_000, "job": {"name": "shop", "state": "RUNNING"}, "series": {"queries": series_},
        "queries": [{"uid": uid, "lag": {"rows": None, "at": None}} for uid in series_],
        "timeline": {"spans": [{"since": 0, "until": None}]}, "channels": [], "incidents": [], **parts,
    }  # fmt: skip


def test_all_that_is_known_is_plotted_by_default(document: dict[str, Any]) -> None:
    shown = plots(document)
    headings = ["Duration of an epoch, ms", "Rows read by an epoch", "Rows still to be read"]
    assert [panel.heading for panel in shown.panels] == headings
    assert ("audit-audit", 9, 13) in {(bar.source, bar.done, bar.running) for bar in shown.bars or ()}
    assert len(shown.gaps) == 1 and len(shown.incidents) == 5
    assert len(shown.queries) == SHOWN and {line.query for line in shown.panels[0].others} == {"load-rates"}


def test_a_line_is_broken_where_no_driver_ran(document: dict[str, Any]) -> None:
    shown = plots(document, [PlotKind.EPOCHS])
    ((since, until),) = shown.gaps
    for panel in shown.panels:
        for line in panel.lines:
            (place,) = [n for n, value in enumerate(line.values) if value is None]
            assert line.at[place - 1] <= since < line.at[place] < until <= line.at[place + 1]


def test_late_gaps_and_information_are_left_out() -> None:
    spans = [{"since": 0, "until": 10}, {"since": 20, "until": 30}, {"since": 40, "until": None}]
    assert plots(made({"q": series([5, 25])}, timeline={"spans": spans})).gaps == ((10, 20),)
    incidents = [{"at": n, "severity": severity} for n, severity in enumerate(("INFO", "ERROR", ""))]
    assert plots(made({}, incidents=incidents)).incidents == (1, 2)


@given(
    st.lists(st.integers(0, 1_000), unique=True).map(sorted),
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(1, 50)), max_size=4),
)
def test_breaking_keeps_each_value_and_the_order(at: list[int], begins: list[tuple[int, int]]) -> None:
    gaps = [(since, since + size) for since, size in sorted(begins)]
    times, values = _broken(at, [list(map(float, at))], gaps)
    assert [(a, b) for a, b in zip(times, values, strict=True) if b is not None] == [(a, float(a)) for a in at]


def test_what_is_unknown_says_so_and_is_no_value() -> None:
    nothing = plots(made({}), list(PlotKind))
    none = "no epoch has been committed yet"
    assert [panel.nothing for panel in nothing.panels] == [none, none, "no source of this job knows its lag"]
    assert nothing.bars == ()
    assert [panel.title for panel in plots(made({})).panels] == ["Duration of an epoch", "Rows read by an epoch"]
    assert plots(made({}), [PlotKind.EPOCHS]).bars is None
    shown = plots(made({"q": series([1, 2], ms=[UNKNOWN, 5], lag=[UNKNOWN, 7])}))
    assert [list(panel.lines[0].values) for panel in shown.panels] == [[None, 5], [10, 10], [None, 7]]


@pytest.mark.parametrize(("ms", "unit", "value"), [(100, "ms", 100), (90_000, "s", 90), (1_200_000, "min", 20)])
def test_the_unit_of_a_duration_fits(ms: int, unit: str, value: float) -> None:
    panel = plots(made({"q": series([1_000], ms=[ms])})).panels[0]
    assert panel.unit == unit and panel.lines[0].values == (value,)


def test_the_lag_ends_as_last_said_unless_an_epoch_is_newer() -> None:
    def lag(at: int) -> Plots:
        queries = [{"uid": "q", "lag": {"rows": 3, "at": at}}]
        return plots(made({"q": series([1, 20], lag=[9, 8])}, queries=queries), [PlotKind.LAG])

    assert lag(30).panels[0].lines[0].values == (9, 8, 3)
    assert lag(10).panels[0].lines[0].values == (9, 8)


def test_the_slowest_queries_have_one_colour_each_in_all_panels() -> None:
    many = {f"q{n:02}": series([1, 2], ms=[n, n]) for n in range(20)}
    many["q00"] = series([1, 2], ms=[0, 0], lag=[50, 50])
    shown = plots(made(many))
    assert shown.queries == ("q00", "q15", "q16", "q17", "q18", "q19")
    assert [len(panel.others) for panel in shown.panels] == [14, 14, 0]


def test_of_many_sources_those_with_the_most_to_do_have_a_bar() -> None:
    common = {"query": "q", "done": 1}
    channels = [{**common, "source": f"s{n:02}", "running": n, "finished": n == 0} for n in range(BARS + 6)]
    shown = plots(made({}, channels=channels))
    assert shown.bars is not None and len(shown.bars) == BARS and shown.more == 6
    assert [bar.source for bar in shown.bars] == [f"s{n:02}" for n in range(6, BARS + 6)]


def test_times_are_utc() -> None:
    assert time_text(1_767_225_605_000) == "2026-01-01 00:00:05"
    assert time_text(1_767_225_605_000, date=False) == "00:00:05"
