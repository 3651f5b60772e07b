"""Processes leave notes, and a watcher answers for them through the state directory: real processes, without Spark."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from spark_ext.queries.samples import Samples
from spark_ext.spark.watching.attendance import folder_of
from tests.support.waiting import until

ATTENDS = """
import sys, threading
from spark_ext.spark.watching.attendance import attend

def stuck_here():
    threading.Event().wait()

attend("task", sys.argv[1], sys.argv[2])
print("attends", flush=True)
if len(sys.argv) > 3:
    sys.stdin.read(1)
    attend("task", sys.argv[3], sys.argv[2])
    print("attends", flush=True)
stuck_here()
"""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[str]:
    """A state directory whose watcher is gone after the test."""
    yield str(tmp_path)
    place = folder_of(str(tmp_path))
    until(lambda: not list(place.glob("*")) or not watchers(str(tmp_path)), "the watcher has ended", 30)
    if place.exists():
        place.rmdir()


def watchers(state: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if state in words and any(word.endswith("watch_workers.py") for word in words):
            found.append(process)
    return found


def attending(state: str, query: str, *then: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ATTENDS, state, query, *then]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().strip() == "attends"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def test_stacks_of_processes_come_through_the_state_directory(state: str) -> None:
    mine, other, later = (attending(state, query) for query in ("q", "another", "q"))
    try:
        until(lambda: watchers(state), "a watcher runs")
        found = Samples(state).take("q", stacks=True)
        assert {one.pid for one in found} == {mine.pid, later.pid}
        functions = [frame.function for frame in found[0].threads[0].frames]
        assert "stuck_here" in functions and found[0].cpu > 0
        assert all(not one.threads for one in Samples(state).take("q", stacks=False))
        # A process that is frozen writes nothing, and keeps nobody else from being asked.
        psutil.Process(mine.pid).suspend()
        by_pid = {one.pid: one.threads for one in Samples(state).take("q", stacks=True)}
        psutil.Process(mine.pid).resume()
        assert by_pid[mine.pid] == () and by_pid[later.pid] != ()
        end(later)
        assert [one.pid for one in Samples(state).take("q", stacks=False)] == [mine.pid]
        assert len(watchers(state)) == 1
        assert list((Path(state) / "samples").iterdir()) == [], "requests and answers are removed"
    finally:
        for process in (mine, other, later):
            end(process)
    until(lambda: not watchers(state), "the watcher has ended with the last process", 30)
    assert not [path.name for path in folder_of(state).iterdir()]


def test_a_worker_that_serves_another_job_ends_the_first_watcher(state: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    process = attending(state, "q", other)
    try:
        until(lambda: watchers(state), "a watcher runs")
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("x")
        process.stdin.close()
        assert process.stdout.readline().strip() == "attends"
        until(lambda: not watchers(state) and watchers(other), "another watcher runs instead", 30)
        (found,) = Samples(other).take("q", stacks=True)
        assert "stuck_here" in [frame.function for frame in found.threads[0].frames]
    finally:
        end(process)
    until(lambda: not watchers(other), "that has ended too", 30)


def test_what_a_killed_driver_has_left_is_removed(tmp_path: Path) -> None:
    now = time.time_ns()
    samples = tmp_path / "samples"
    samples.mkdir()
    for age in (0, 3600):
        (samples / f"{now - age * 10**9:020}-aa.request").write_text("{}")
    Samples(str(tmp_path), over=lambda: True).take("q", stacks=False)
    assert [path.name for path in samples.iterdir()] == [f"{now:020}-aa.request"]


def test_nobody_answers_where_nobody_attends(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert Samples(str(tmp_path), over=lambda: time.monotonic() - begun > 0.3).take("q", stacks=True) == ()


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder_of("state").chmod(0o755)
    with pytest.raises(PermissionError, match="not private"):
        folder_of("state")
