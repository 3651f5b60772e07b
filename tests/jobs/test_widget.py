"""The live widget: it follows a job while it is displayed, and its thread ends with the job."""

import threading
from typing import Any

import pytest

from spark_ext.errors import EnvironmentProblem
from spark_ext.jobs.widget import LAST_LOOKS, JobWidget
from spark_ext.model.lifecycle import State
from spark_ext.views.notebook import LastIncident
from spark_ext.views.snapshot import JobSnapshot
from tests.support.snapshots import job, query
from tests.support.waiting import until

pytest.importorskip("ipywidgets")


class Running:
    """A job whose snapshots the test makes."""

    def __init__(self) -> None:
        self.name, self.done, self.looks, self.rows = "flights", False, 0, 0
        self.state, self.broken = State.RUNNING, False

    def snapshot(self) -> JobSnapshot:
        self.looks += 1
        if self.broken:
            raise RuntimeError("dictionary changed size during iteration")
        return job(query("a", self.state, rows=self.rows), state=self.state)

    def last_incident(self) -> LastIncident | None:
        return None


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "widget of job 'flights'"]


def display(widget: JobWidget) -> dict[str, Any]:
    data, _ = widget._repr_mimebundle_()
    return dict(data)


def follows(widget: JobWidget) -> bool:
    return widget.following


@pytest.fixture
def running() -> Running:
    return Running()


@pytest.fixture
def widget(running: Running) -> JobWidget:
    return JobWidget(running, every=0.01)


def test_nothing_runs_until_it_is_displayed(widget: JobWidget) -> None:
    assert "RUNNING" in widget.widget.value and not follows(widget) and not threads()


def test_it_follows_the_job_and_shows_its_end(running: Running, widget: JobWidget) -> None:
    bundle = display(widget)
    assert "application/vnd.jupyter.widget-view+json" in bundle and bundle["text/html"] == widget.widget.value
    assert "job 'flights' RUNNING" in bundle["text/plain"]
    running.rows = 1234
    until(lambda: "1,234 rows" in widget.widget.value, "the rows to be shown")
    display(widget)  # a second time: there is one thread
    assert len(threads()) == 1
    running.state = State.FINISHED
    running.done = True
    until(lambda: not follows(widget), "the thread to end")
    assert "FINISHED" in widget.widget.value
    display(widget)
    assert not follows(widget)


@pytest.mark.parametrize("ended", [False, True], ids=["while it runs", "at the end"])
def test_a_look_that_fails_is_said_once_and_the_end_is_shown(
    running: Running, widget: JobWidget, caplog: pytest.LogCaptureFixture, ended: bool
) -> None:
    widget.start()
    running.broken = True
    running.state, running.done, failed = State.FINISHED, ended, running.looks
    until(lambda: running.looks >= failed + 2 * LAST_LOOKS or not follows(widget), "looks that fail")
    assert follows(widget)
    running.broken, running.done = False, True
    until(lambda: not follows(widget), "the thread to end")
    assert "FINISHED" in widget.widget.value
    assert caplog.messages == ["the widget of job 'flights' could not be refreshed; it will retry"]
    assert "dictionary changed size" in caplog.text


def test_close_ends_it(widget: JobWidget) -> None:
    widget.start()
    assert follows(widget)
    widget.close()
    widget.close()
    assert not follows(widget)
    widget.start()
    assert not follows(widget)


def test_it_ends_when_nobody_holds_the_job() -> None:
    running = Running()
    widget = JobWidget(running, every=0.01)
    widget.start()
    del running
    until(lambda: not follows(widget), "the thread to end")
    assert "flights" in display(widget)["text/plain"]


def test_a_further_start_is_followed_when_it_is_displayed_again(running: Running, widget: JobWidget) -> None:
    running.done = True
    display(widget)
    assert not follows(widget)
    running.done = False
    display(widget)
    assert follows(widget)
    widget.close()


def test_without_ipywidgets_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ipywidgets", None)
    with pytest.raises(EnvironmentProblem, match="ipywidgets") as refused:
        JobWidget(Running())
    assert "spark-ext[notebook]" in refused.value.do
