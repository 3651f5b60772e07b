"""Fail points do what the environment asks, the nth time, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from spark_ext import failpoints


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_passed", Counter())
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    monkeypatch.delenv(failpoints.ONCE_DIR, raising=False)


def passes(point: str, times: int) -> list[bool]:
    """Which of several passes raised."""
    out = []
    for _ in range(times):
        try:
            failpoints.reach(point)
        except OSError:
            out.append(True)
        else:
            out.append(False)
    return out


def test_nothing_happens_unless_asked_for() -> None:
    assert passes("a", 3) == [False] * 3


def test_a_point_acts_once_at_the_time_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_unknown_action_is_an_error_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "a=kil")
    with pytest.raises(ValueError, match="unknown action 'kil' at a"):
        failpoints.reach("a")


def test_workers_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a cluster they do not inherit the driver's environment."""
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    monkeypatch.delenv(failpoints.ONCE_DIR, raising=False)
    assert failpoints.for_workers() == {failpoints.DRIVER_PID: str(os.getpid())}
    monkeypatch.setenv(failpoints.VARIABLE, "sink.written=kill-driver")
    monkeypatch.setenv(failpoints.ONCE_DIR, str(tmp_path))
    told = failpoints.for_workers()
    assert (told[failpoints.VARIABLE], told[failpoints.ONCE_DIR]) == ("sink.written=kill-driver", str(tmp_path))


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
