"""The live widget of a job in a notebook. It needs the extra `notebook`, and costs nothing until it is displayed."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from spark_ext.clients.library import load
from spark_ext.masking import logger
from spark_ext.views.notebook import POINTS, LastIncident, job_text, live_html

if TYPE_CHECKING:
    from spark_ext.views.snapshot import JobSnapshot

log = logger("spark_ext.job")
EVERY_S: Final = 1.0  # between two looks at the job, s
LAST_LOOKS: Final = 5
"""Looks at a job that has ended before it is followed no longer: a run may have a second part, see `Job.run`."""


class Shown(Protocol):
    """What the widget needs of a job."""

    name: str

    @property
    def done(self) -> bool:
        """Whether it has ended."""

    def snapshot(self) -> JobSnapshot:
        """What it looks like now."""

    def last_incident(self) -> LastIncident | None:
        """Its newest incident."""


class JobWidget:
    """Shows a job and follows it, from the first display on until the job has ended.

    Where it is the last value of a notebook's cell, or given to `display`, a thread takes a snapshot each second and
    puts it into the widget. The thread ends with the job, with `close`, and when nobody holds the job any more. A
    display after the end of the job shows how it has ended, and starts nothing.

    Args:
        job: which is shown; it may be started later.
        every: time between two looks, s.

    Raises:
        EnvironmentProblem: the extra `notebook` is not installed.
    """

    def __init__(self, job: Shown, every: float = EVERY_S) -> None:
        widgets = load("ipywidgets", "notebook", f"job '{job.name}', widget", "the Python of the notebook")
        self._job = weakref.ref(job)
        self._name = job.name
        self._every = every
        self._rates: deque[float] = deque(maxlen=POINTS)
        self._before: tuple[float, int, int] | None = None
        self._failed = False
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.widget: Any = widgets.HTML()
        """What is displayed: a widget of ipywidgets, to place it in a layout; `start` lets it follow the job."""
        self._look()

    def start(self) -> None:
        """Follow the job, if it has not ended. Displaying the widget does this; repeated calls do nothing."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            if self._closed.is_set() or not self._look():
                return
            self._thread = threading.Thread(target=self._follow, name=f"widget of job '{self._name}'", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Follow the job no longer; what was shown last stays. Repeated calls do nothing."""
        self._closed.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def following(self) -> bool:
        """Whether it is refreshed."""
        return self._thread is not None and self._thread.is_alive()

    def _follow(self) -> None:
        last = 0
        while last < LAST_LOOKS and not self._closed.wait(self._every):
            last = 0 if self._look() else last + 1

    def _look(self) -> bool:
        """Show the job as it is now; returns whether there will be anything new."""
        job = self._job()
        try:
            return job is not None and self._shown(job)
        except Exception:
            # What is looked at changes meanwhile. The next look may succeed, and that of the end has to be shown.
            if not self._failed:
                log.warning("the widget of job '%s' could not be refreshed; it will retry", self._name, exc_info=True)
            self._failed = True
            return True

    def _shown(self, job: Shown) -> bool:
        # Before the snapshot: that of a job which had ended is its last one.
        ended = job.done
        snapshot = job.snapshot()
        self._measure(snapshot)
        self.widget.set_trait("value", live_html(snapshot, self._rates, job.last_incident()))
        return not ended

    def _measure(self, snapshot: JobSnapshot) -> None:
        """Take the rate since the look before. A further start of the job begins at zero."""
        if not snapshot.incarnation or snapshot.state.ended:
            return
        now, before = time.monotonic(), self._before
        self._before = now, snapshot.incarnation, snapshot.rows
        if before is None or before[1] != snapshot.incarnation:
            self._rates.clear()
        elif now > before[0]:
            self._rates.append(max(0, snapshot.rows - before[2]) / (now - before[0]))

    def _repr_mimebundle_(self, **given: Any) -> Any:
        """What a notebook asks for when it displays it: the widget; where it has none, the job as it is now."""
        self.start()
        bundle = self.widget._repr_mimebundle_(**given)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        job = self._job()
        text = f"<widget of job '{self._name}'>" if job is None else job_text(job.snapshot())
        return {**(data or {}), "text/html": self.widget.value, "text/plain": text}, metadata
