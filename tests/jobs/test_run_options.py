"""How a run is to end, and what it does while another run is under way: without Spark."""

import threading

import pytest

from spark_ext.errors import ConfigurationError, JobRunningError
from spark_ext.jobs import run_options
from spark_ext.jobs.run_options import RunOptions


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"until": "yesterday"}, "until is 'yesterday'"), ({"until": "now", "emit": "none"}, "emit is 'none'"),
        ({"until": None, "emit": "all"}, "emit='all' is given without until='now'"),
        ({"until": None, "emit": "early"}, "emit='early' is given without until='now'"),
        ({"until": "now", "if_running": "skip"}, "if_running is 'skip'"),
        ({"until": "now", "wait_timeout": 3.0}, "wait_timeout is given without if_running='wait'"),
        ({"until": "now", "if_running": "wait", "wait_timeout": -1.0}, "wait_timeout is -1.0"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match="nothing was started") as refusal:
        RunOptions.of("lab", **given)  # type: ignore[arg-type]
    assert named in refusal.value.what


def test_a_plain_run_looks_at_this_host_only() -> None:
    assert not RunOptions.of("lab", None).other_hosts
    assert RunOptions.of("lab", "now").other_hosts
    assert RunOptions.of("lab", None, if_running="wait").other_hosts


class Other:
    """A start that finds another run a few times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.starts = 0

    def __call__(self) -> str:
        self.starts += 1
        if self.left:
            self.left -= 1
            raise JobRunningError("it runs", operator="job 'lab'", kept="", do="")
        return "started"


def test_a_run_waits_for_another_one_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_options, "LOOK_EVERY", 0.001)
    start = Other(3)
    assert RunOptions.of("lab", "now", if_running="wait").when_free("lab", start, threading.Event()) == "started"
    assert start.starts == 4
    start = Other(1)
    with pytest.raises(JobRunningError):
        RunOptions.of("lab", "now").when_free("lab", start, threading.Event())
    assert start.starts == 1


@pytest.mark.parametrize("how", ["late", "stopped"])
def test_a_wait_ends(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(run_options, "LOOK_EVERY", 0.001)
    stopping = threading.Event()
    if how == "stopped":
        stopping.set()
    options = RunOptions.of("lab", "now", if_running="wait", wait_timeout=0.0 if how == "late" else None)
    with pytest.raises(JobRunningError):
        options.when_free("lab", Other(10**9), stopping)
