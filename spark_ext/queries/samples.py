"""Asks the Python processes that work for a query for their CPU times and stacks, through the state directory."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from spark_ext.masking import mask
from spark_ext.model.stacks import WorkerSample, threads_of
from spark_ext.spark.watching.attendance import attended
from spark_ext.storage import Location, child

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "samples"  # in the state directory
WITHIN: Final = 4.0  # how long to wait for answers, s
PATIENTLY: Final = 15.0  # where processes of this machine can be asked, s: their watcher answers, if late when busy

QUIET: Final = 0.8
"""Nothing more is expected so long after the last answer, s: the watchers of all machines look twice a second. It is
not waited for once all machines have answered that answered the sample before, a moment ago."""

RECENT: Final = 10.0  # how old a sample may be that says which machines answer, s
LEFT_AFTER: Final = 300.0  # age at which nobody waits for an answer any more, s, also by the clock of another machine


class Samples:
    """Takes samples of the Python processes of a job, until `over` says that nobody waits for answers any more."""

    def __init__(self, state: str, over: Callable[[], bool] = lambda: False) -> None:
        self._state = state
        self._folder = Location.of(child(state, FOLDER), {}).folder
        self._over = over
        self._cleaned = False
        self._answered: dict[str, tuple[float, set[str]]] = {}  # by query: when (s, monotonic), and which watchers

    def take(self, query: str, *, stacks: bool) -> tuple[WorkerSample, ...]:
        """Ask for the processes of one query, and wait for some seconds at most. Nobody may answer."""
        asked = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}"
        request = {"at": time.time(), "query": query, "stacks": stacks}
        answers: dict[str, dict[str, Any]] = {}
        at, before = self._answered.get(query, (0.0, set()))
        expected = before if time.monotonic() - at <= RECENT else set()
        self._clean()
        try:
            self._folder.write(f"{asked}.request", json.dumps(request))
            by, changed = time.monotonic() + (PATIENTLY if attended(self._state) else WITHIN), time.monotonic()
            while time.monotonic() < by and not self._over():
                known = len(answers)
                answers.update(self._answers(asked, answers))
                changed = time.monotonic() if len(answers) > known else changed
                if expected and expected <= {_watcher(name) for name in answers}:
                    break
                if answers and time.monotonic() - changed >= QUIET:
                    break
                time.sleep(0.05)
        finally:
            for name in [f"{asked}.request", *answers]:
                with suppress(OSError):
                    self._folder.delete(name)
        self._answered[query] = (time.monotonic(), {_watcher(name) for name in answers})
        return tuple(_sample(answer["host"], one) for answer in answers.values() for one in answer["processes"])

    def _clean(self) -> None:
        """Remove what a driver has left that was killed while it waited; once."""
        if self._cleaned:
            return
        self._cleaned = True
        with suppress(OSError):
            for name in list(self._folder.files()):
                begun = name.partition("-")[0]
                if begun.isdigit() and time.time() - int(begun) / 1e9 > LEFT_AFTER:
                    self._folder.delete(name)

    def _answers(self, asked: str, known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in list(self._folder.files()):
            if name.startswith(f"{asked}.answer-") and name not in known:
                with suppress(OSError, ValueError):
                    yield name, json.loads(self._folder.read(name))


def _watcher(answer: str) -> str:
    """The watcher that has given an answer, by the name of its file."""
    return answer.partition(".answer-")[2]


def _sample(host: str, given: dict[str, Any]) -> WorkerSample:
    return WorkerSample(
        host,
        given["pid"],
        given["role"],
        given["uid"],
        given["cpu"],
        given["switches"],
        threads_of(mask(given["stack"])),
    )
