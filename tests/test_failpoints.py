"""Fail points do what the environment asks, the nth time, once."""

import ast
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ext import failpoints
from spark_ext.failpoints import FailPoint
from spark_ext.ledger.schema import ROWS
from spark_ext.model.lifecycle import FinalStep


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    monkeypatch.delenv(failpoints.ONCE_DIR, raising=False)


def passes(point: str, times: int) -> list[bool]:
    out = [False] * times
    for number in range(times):
        try:
            failpoints.reach(point)
        except OSError:
            out[number] = True
    return out


def test_a_point_acts_once_at_the_time_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes("a", 3) == [False] * 3
    monkeypatch.setenv(failpoints.VARIABLE, "a=raise;b=raise#3")
    assert passes("a", 3) == [True, False, False]
    assert passes("b", 5) == [False, False, True, False, False]
    assert passes("ab", 2) == [False, False]


def test_with_a_folder_a_point_acts_once_over_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "a=raise;b=raise")
    monkeypatch.setenv(failpoints.ONCE_DIR, str(tmp_path))
    assert passes("a", 1) == [True]
    monkeypatch.setattr(failpoints, "_passed", Counter())  # as in another process
    assert passes("a", 2) == [False, False]
    assert passes("b", 1) == [True]


def test_workers_get_what_the_driver_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a cluster they do not inherit the driver's environment."""
    assert failpoints.for_workers() == {failpoints.DRIVER_PID: str(os.getpid())}
    monkeypatch.setenv(failpoints.VARIABLE, "sink.written=kill-driver")
    monkeypatch.setenv(failpoints.ONCE_DIR, str(tmp_path))
    given = failpoints.for_workers()
    assert (given[failpoints.VARIABLE], given[failpoints.ONCE_DIR]) == ("sink.written=kill-driver", str(tmp_path))


PROGRAM = "from spark_ext.failpoints import reach; [reach('a') for _ in range(3)]; print('through')"


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


def test_kill_is_a_kill(tmp_path: Path) -> None:
    once = {failpoints.VARIABLE: "a=kill#2", failpoints.ONCE_DIR: str(tmp_path)}
    assert run(**once).returncode == -signal.SIGKILL
    # The next start passes the point unharmed.
    assert run(**once).stdout == "through\n"


def test_a_worker_can_kill_its_driver() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as driver:
        done = run(**{failpoints.VARIABLE: "a=kill-driver", failpoints.DRIVER_PID: str(driver.pid)})
        assert done.stdout == "through\n"
        assert driver.wait(300) == -signal.SIGKILL


def test_a_process_waits_at_a_point_until_it_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv(failpoints.VARIABLE, f"a=wait:{gate}")
    thread = threading.Thread(target=failpoints.reach, args=("a",))
    thread.start()
    waiting = tmp_path / "gate.waiting"
    while not waiting.exists():
        assert thread.is_alive()
        thread.join(0.01)
    assert thread.is_alive()
    gate.touch()
    thread.join(300)
    assert not thread.is_alive()


ROOT = Path(__file__).parents[1]


def reached(folder: Path) -> Iterator[str]:
    """Of each call of `reach` in a folder's modules a pattern of the names that it is given."""
    for text in (file.read_text(encoding="utf-8") for file in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(text)) if "reach(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
                yield pattern(node.args[0])


def pattern(point: ast.expr) -> str:
    match point:
        case ast.Attribute(value=ast.Name(id="FailPoint"), attr=name):
            return re.escape(FailPoint[name])
        case ast.Constant(value=str(name)):
            return re.escape(name)
        case ast.JoinedStr(values=parts):
            return "".join("[a-z_]+" if isinstance(part, ast.FormattedValue) else pattern(part) for part in parts)
    raise AssertionError(f"a fail point that cannot be looked up in the list: {ast.unparse(point)}")


def test_the_points_of_the_list_are_those_that_are_reached() -> None:
    patterns = {one for name in ("spark_ext", "sources", "sinks", "listeners") for one in reached(ROOT / name)}
    assert len(patterns) > 50
    points = {point.value for point in FailPoint}
    assert [one for one in sorted(patterns) if not any(re.fullmatch(one, point) for point in points)] == []
    assert [point for point in sorted(points) if not any(re.fullmatch(one, point) for one in patterns)] == []


def test_each_ledger_table_and_each_final_step_has_its_points() -> None:
    tables = {f"ledger.{row.table}.{when}" for row in ROWS for when in ("before", "after")}
    assert tables == {point.value for point in FailPoint if point.startswith("ledger.")}
    steps = {f"final.{when}{step.value.lower()}" for step in FinalStep for when in ("before_", "")}
    own = {FailPoint.FINAL_BEFORE_END_OF_INPUT, FailPoint.FINAL_STOPPED}
    assert steps == {point.value for point in FailPoint if point.startswith("final.")} - own


def test_unknown_points_and_actions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose first part is not one of this package's belongs to a connector of its own."""
    monkeypatch.setenv(failpoints.VARIABLE, "sink.written=raise#9;my_sink.torn=raise")
    with pytest.raises(ValueError, match=r"unknown fail point 'sink\.writen'"):
        failpoints.reach("sink.writen")
    failpoints.reach("my_sink.whole")
    with pytest.raises(OSError, match=r"my_sink\.torn"):
        failpoints.reach("my_sink.torn")
    monkeypatch.setenv(failpoints.VARIABLE, "kafka.comitted=kill")
    with pytest.raises(ValueError, match=r"unknown fail point 'kafka\.comitted'"):
        failpoints.reach(FailPoint.SINK_WRITTEN)
    monkeypatch.setenv(failpoints.VARIABLE, "a=kil")
    with pytest.raises(ValueError, match="unknown action 'kil' at a"):
        failpoints.reach("a")
