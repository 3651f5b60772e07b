"""Asks the Python processes that work for a query for their CPU times and stacks, through the state directory."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from spark_ext.datafiles.location import Location
from spark_ext.delta.failures import child
from spark_ext.masking import mask
from spark_ext.model.stacks import WorkerSample, threads_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "samples"
"""In the state directory."""

WITHIN: Final = 4.0
"""How long to wait for answers, s."""

QUIET: Final = 0.8
"""Nothing more is expected so long after the last answer, s: the watchers of all machines look twice a second."""

LEFT_AFTER: Final = 300.0
"""Age at which nobody waits for an answer any more, s, also by the clock of another machine."""


class Samples:
    """Takes samples of the Python processes of a job.

    Args:
        state: the job's state directory.
        over: whether nobody waits for answers any more.
    """

    def __init__(self, state: str, over: Callable[[], bool] = lambda: False) -> None:
        self._location = Location.of(child(state, FOLDER), {})
        self._over = over
        self._cleaned = False

    def take(self, query: str, *, stacks: bool) -> tuple[WorkerSample, ...]:
        """Ask for the processes of one query, and wait for a few seconds at most. Nobody may answer.

        Args:
            query: its uid.
            stacks: whether their stacks are wanted.

        Raises:
            OSError: the state directory cannot be written.
        """
        asked = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}"
        request = {"at": time.time(), "query": query, "stacks": stacks}
        answers: dict[str, dict[str, Any]] = {}
        self._clean()
        try:
            self._write(f"{asked}.request", json.dumps(request).encode())
            by, changed = time.monotonic() + WITHIN, time.monotonic()
            while time.monotonic() < by and not self._over():
                before = len(answers)
                answers.update(self._answers(asked, answers))
                changed = time.monotonic() if len(answers) > before else changed
                if answers and time.monotonic() - changed >= QUIET:
                    break
                time.sleep(0.1)
        finally:
            for name in [f"{asked}.request", *answers]:
                with suppress(OSError):
                    self._location.delete(name)
        return tuple(_sample(answer["host"], one) for answer in answers.values() for one in answer["processes"])

    def _clean(self) -> None:
        """Remove what a driver has left that was killed while it waited; once."""
        if self._cleaned:
            return
        self._cleaned = True
        with suppress(OSError):
            for name in list(self._location.files()):
                begun = name.partition("-")[0]
                if begun.isdigit() and time.time() - int(begun) / 1e9 > LEFT_AFTER:
                    self._location.delete(name)

    def _write(self, name: str, content: bytes) -> None:
        folder = self._location.local
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".{name}"
            draft.write_bytes(content)
            draft.replace(folder / name)
            return
        with self._location.create(name) as stream:
            stream.write(content)

    def _answers(self, asked: str, known: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in list(self._location.files()):
            if name.startswith(f"{asked}.answer-") and name not in known:
                content = self._location.read(name)
                with suppress(ValueError):
                    yield name, json.loads(content or b"")


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
