"""What a soak makes of its samples: slopes, verdicts, rows and the page. The run itself is `benchmarks.soak`."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import judge, page
from benchmarks.soak.run import Plan, last_run, steps

MB = 1_000_000


def driver(at: float, started: float, **figures: float) -> dict[str, Any]:
    given = {"rss": 100 * MB, "pss": 90 * MB, "descriptors": 40, "threads": 9, "cpu": (at - started) / 4, **figures}
    return {"role": "driver", "kind": "", "pid": 1, "started": started, **given}


def samples(hours: float = 2, every: float = 600, files: Any = lambda at: 50, **grow: float) -> list[dict[str, Any]]:
    """One each 10 s, of a driver that is restarted; what grows does so by so much in an hour from each start on."""
    found = []
    for at in range(0, int(3600 * hours), 10):
        begun = at // every * every
        figures = {name: 100 * MB + rate * (at - begun) / 3600 for name, rate in grow.items()}
        folders = {"state": {"files": files(at), "bytes": at}}
        one = {"at": at, "begun": begun, "incarnation": at // every + 1, "folders": folders}
        found.append({**one, "processes": [driver(at, begun, **figures)]})
    return found


def test_a_slope_is_that_of_the_points_within_a_series_and_outliers_do_not_count() -> None:
    line = [(float(at), 5.0 + at / 360) for at in range(0, 3600, 10)]
    assert judge.slope([line]) == pytest.approx(10)
    assert judge.slope([line[:180], [(at, value - 1_000) for at, value in line[180:]]]) == pytest.approx(10)
    chance = random.Random(1)
    noisy = [(at, value + (1e6 if chance.random() < 0.2 else 0)) for at, value in line]
    assert judge.slope([noisy]) == pytest.approx(10, abs=0.5)
    assert judge.slope([[(0.0, 1.0)], []]) is None


@pytest.mark.parametrize(("rate", "good"), [(0, True), (0.9 * MB, True), (1.2 * MB, False), (-5 * MB, True)])
def test_memory_may_grow_by_a_hundredth_in_an_hour(rate: float, good: bool) -> None:
    found = judge.processes(samples(rss=rate), "driver", "rss")
    assert found is not None and found.hour == pytest.approx(rate / 100 / MB, rel=0.02) and found.meets("rss") is good
    assert found.across == pytest.approx(0)


def test_what_a_restart_does_not_take_back_is_growth_across_incarnations() -> None:
    found = samples()
    for one in found:
        one["processes"][0]["rss"] += one["incarnation"] * MB
    grown = judge.processes(found, "driver", "rss")
    assert grown is not None and grown.hour == 0 and grown.across == pytest.approx(0.06, rel=0.1)


def test_the_kind_of_process_that_grows_is_named_however_many_others_there_are() -> None:
    found = samples()
    for one in found:
        age = one["at"] - one["begun"]
        one["processes"] = [{**driver(one["at"], one["begun"]), "pid": pid, "kind": "calm"} for pid in range(9)]
        one["processes"].append({**driver(one["at"], one["begun"], threads=9 + age / 600), "pid": 9, "kind": "leaks"})
    grown = judge.processes(found, "driver", "threads")
    assert grown is not None and grown.kind == "leaks" and grown.hour == pytest.approx(6) and grown.level > 90


def test_descriptors_may_not_grow_and_a_young_process_is_not_judged() -> None:
    found = judge.processes(samples(descriptors=2), "driver", "descriptors")
    assert found is not None and found.meets("descriptors") is False
    young = judge.processes(samples(every=120, threads=1000), "driver", "threads")
    assert young is not None and young.hour is None and young.meets("threads")
    assert judge.processes(samples(), "JVM", "rss") is None


def test_what_is_cleaned_each_half_hour_is_bounded_and_what_is_not_is_not() -> None:
    assert judge.bounded(samples(files=lambda at: 50 + at % 1800), "state")
    assert not judge.bounded(samples(files=lambda at: 50 + at), "state")


def test_each_cycle_ends_with_a_savepoint_and_then_a_restart() -> None:
    plan = Plan(minutes=6, restart_every=2, steady=3, rate=20)
    assert steps(plan) == [
        (60, "change"), (60, "vacuum"), (120, "change"), (120, "savepoint"), (120, "restart"), (180, "change"),
        (180, "vacuum"), (240, "change"), (240, "savepoint"), (300, "change"), (300, "vacuum"), (360, "end"),
    ]  # fmt: skip


def test_rows_are_lost_doubled_or_strange() -> None:
    assert judge.compare(range(5), [4, 3, 2, 1, 0]).exact
    assert judge.compare(range(5), [0, 0, 0, 2, 9, 9]) == judge.Rows(5, lost=3, doubled=2, strange=2)


def test_a_broken_off_run_has_a_page(tmp_path: Path) -> None:
    journal, earlier = tmp_path / "soak.jsonl", {"at": 0, "plan": {"rate": 1}, "environment": {}}
    plan = {"at": 0, "plan": {"rate": 20}, "environment": {"commit": "abc", "date": "2026-12-01"}}
    rows = {"postgres_2pc": {"produced": 5, "lost": 1, "doubled": 0, "strange": 0}}
    lines = [plan, *samples(descriptors=2), {"at": 9, "restart": "kill", "seconds": 30}, {"at": 9, "rows": rows}]
    lines.append({"at": 9, "fault": "rows: one is lost\nthe rest"})
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in [earlier, *lines]) + '{"at": 1')
    found = last_run(journal)
    assert found == lines and not page.holds(found)
    shown = page.text(found)
    assert "**The run was broken off: rows: one is lost**" in shown and "| postgres_2pc | 5 | 1 | 0 | 0 |" in shown
    assert "0.25 of a core" in shown and "| driver | descriptors | " in shown and "+2.0 (misses)" in shown
    page.plot(found, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def test_a_run_of_which_nothing_is_wrong_holds() -> None:
    rows = {"at": 9, "rows": {"kafka_2pc": {"produced": 5, "lost": 0, "doubled": 0, "strange": 0}}}
    plan = {"at": 0, "plan": {"rate": 20}, "environment": {"commit": "abc", "date": "2026-12-01"}}
    assert page.holds([plan, *samples(), rows])
    assert not page.holds([plan, *samples()])
