"""Servers in a driver: one for each job, until its run has ended."""

import threading
from pathlib import Path

import pytest

import spark_ext as sx
from spark_ext.errors import ConfigurationError, TransientError
from spark_ext.jobs.serving import Serving
from tests.control.states import State
from tests.support.waiting import until


def test_each_job_of_a_driver_has_a_server_until_its_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ext.control.client.ATTEMPTS", 1)
    one, two = State(tmp_path / "one"), State(tmp_path / "two", job="flights")
    with Serving("orders", one.path) as first, Serving("flights", two.path) as second:
        assert first.token != second.token and str(first.token) not in repr(first)
        left, right = sx.Control(first.url, first.token), sx.Control(second.url, second.token)
        sent = left.pause()
        done = threading.Event()
        first.end_with(done)
        first.end_with(threading.Event())  # the first run counts
        gone: list[str] = []

        def wait() -> None:
            try:
                sent.wait(60)
            except TransientError as problem:
                gone.append(problem.what)

        waiting = threading.Thread(target=wait)
        waiting.start()
        with pytest.raises(ConfigurationError, match="invalid bearer token"):
            sx.Control(second.url, first.token).events()
        assert first.running
        done.set()
        until(lambda: not first.running, "it has ended with the run")
        with pytest.raises(TransientError):
            left.events()
        assert right.pause("query:q").sequence == 1
        first.stop()
        waiting.join(60)
        assert gone, "who waited for an event that has no final status is not left waiting"
    assert not second.running and "stopped" in repr(second)
