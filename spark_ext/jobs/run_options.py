"""How a run of a job is to end, also on Ctrl-C, and what it does while another run of the job is under way."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from tenacity import (
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_fixed,
)
from tenacity.stop import stop_base

from spark_ext.errors import ConfigurationError, JobRunningError
from spark_ext.jobs.result import JobResult, QueryResult
from spark_ext.masking import logger
from spark_ext.queries.writer_checks import NOTHING_STARTED

log = logger("spark_ext.job")
T = TypeVar("T")
Until = Literal["now"]
Emit = Literal["closed", "early", "all"]
IfRunning = Literal["refuse", "wait"]
LOOK_EVERY: Final = 1.0  # pause between two looks at whether the other run has ended, s


@dataclass(frozen=True)
class RunOptions:
    """How a run is to end."""

    until: Until | None = None
    emit: Emit = "closed"
    if_running: IfRunning = "refuse"
    wait_timeout: float | None = None  # s; None: as long as it takes
    other_hosts: bool = False  # whether a driver on another host counts as running while its heartbeat is recent
    drain: bool = False  # whether the start requests a drain

    @classmethod
    def of(
        cls,
        job: str,
        until: str | None,
        emit: str = "closed",
        if_running: str | None = None,
        wait_timeout: float | None = None,
    ) -> RunOptions:
        """What a user has given."""
        operator = f"job '{job}'"
        for name, value, known in (
            ("until", until, (None, "now")),
            ("emit", emit, ("closed", "early", "all")),
            ("if_running", if_running, (None, "refuse", "wait")),
        ):
            if value not in known:
                shown = " or ".join(repr(one) for one in known)
                raise _refused(f"{name} is {value!r}, and can be {shown}", operator, "use one of these")
        if emit != "closed" and until is None:
            raise _refused(
                f"emit='{emit}' is given without until='now'",
                operator,
                "leave it out: a run without `until` emits all windows at the end of its input; to end a job whose "
                "input does not, drain it",
            )
        if wait_timeout is not None and if_running != "wait":
            raise _refused("wait_timeout is given without if_running='wait'", operator, "give both, or none")
        if wait_timeout is not None and wait_timeout < 0:
            raise _refused(f"wait_timeout is {wait_timeout}", operator, "give a number of seconds from 0")
        return cls(
            until,  # type: ignore[arg-type]
            emit,  # type: ignore[arg-type]
            if_running or "refuse",  # type: ignore[arg-type]
            wait_timeout,
            other_hosts=until is not None or if_running is not None,
        )

    def drained(self, *, gated: bool) -> RunOptions:
        """The run after one with `emit="all"`: it reads nothing, emits what is open, and builds nothing that waits."""
        return replace(self, until=self.until if gated else None, emit="closed", drain=True)

    def when_free(self, job: str, start: Callable[[], T], stopping: threading.Event) -> T:
        """Start, once no other run of the job is under way."""
        if self.if_running == "refuse":
            return start()
        limits: list[stop_base] = [stop_when_event_set(stopping)]
        if self.wait_timeout is not None:
            limits.append(stop_after_delay(self.wait_timeout))
        noted = False

        def attempt() -> T:
            nonlocal noted
            try:
                return start()
            except JobRunningError as problem:
                if not noted:
                    noted = True
                    log.warning("job '%s' waits for another run: %s", job, problem.what)
                raise

        waiting = Retrying(
            retry=retry_if_exception_type(JobRunningError),
            wait=wait_fixed(LOOK_EVERY),
            stop=stop_any(*limits),
            sleep=sleep_using_event(stopping),
            reraise=True,
        )
        return waiting(attempt)


def both(first: JobResult, second: JobResult) -> JobResult:
    """The result of a run that was made in parts."""
    before = {query.uid: query for query in first.queries}

    def added(query: QueryResult) -> QueryResult:
        old = before.get(query.uid)
        if old is None:
            return query
        sums = {name: getattr(old, name) + getattr(query, name) for name in ("rows", "epochs", "bad_rows", "late_rows")}
        failures = dict(Counter(old.rule_failures) + Counter(query.rule_failures))
        return replace(query, finished_before=old.finished_before, rule_failures=failures, **sums)

    return replace(second, started=first.started, queries=tuple(map(added, second.queries)))


@contextmanager
def stop_on_interrupt(job: str, stop: Callable[[], object]) -> Iterator[None]:
    """First Ctrl-C: stop in order. Second: exit at once. The two stages are dlt's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    asked_at: list[float] = []

    def on_interrupt(number: int, frame: object) -> None:
        if asked_at:
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt
        asked_at.append(time.monotonic())
        log.warning("stopping job '%s' in order; press Ctrl-C again to exit at once", job)
        stop()

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _refused(what: str, operator: str, do: str) -> ConfigurationError:
    return ConfigurationError(what, operator=operator, kept=NOTHING_STARTED, do=do)
