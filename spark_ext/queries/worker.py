"""A thread that carries out commands in their order, and brings the results back to the deciding thread.

What may take time (a hook, a claim, a start or a stop in Spark) is a command: the coordinator's thread never blocks.
Results wait until it takes them in with `deliver`, so that all decisions are made on one thread, in one order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spark_ext.errors import FencedError
from spark_ext.masking import logger

log = logger("spark_ext.job")

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """How a command has ended."""

    value: T | None = None
    error: Exception | None = None

    def result(self) -> T:
        """What it returned."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def problem(self) -> Exception | None:
        """What it raised; None: nothing."""
        if isinstance(self.error, FencedError):
            raise self.error
        return self.error


def outcome_of(action: Callable[[], T]) -> Outcome[T]:
    """Carry out a command."""
    try:
        return Outcome(action())
    except Exception as problem:
        return Outcome(error=problem)
    except BaseException as exit:  # a hook that calls sys.exit() must not end the worker in silence
        return Outcome(error=RuntimeError(f"{type(exit).__name__}: {exit}"))


@dataclass(frozen=True)
class _Command:
    what: str
    action: Callable[[], Any]
    then: Callable[[Outcome[Any]], None]


class Worker:
    """Carries out commands on a thread of its own, which starts with the first one. For the deciding thread alone.

    `wake` is called on the worker's thread when an outcome has come.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._name = name
        self._wake = wake
        self._lock = threading.Condition()
        self._left: deque[_Command] = deque()
        self._outcomes: deque[tuple[_Command, Outcome[Any]]] = deque()
        self._undelivered: deque[_Command] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._last: Callable[[], object] | None = None

    @property
    def busy(self) -> str:
        """The command that is under way, or whose result has not been delivered; "" without one."""
        with self._lock:
            return self._undelivered[0].what if self._undelivered else ""

    def do(self, what: str, action: Callable[[], T], then: Callable[[Outcome[T]], None]) -> None:
        """Give a command, carried out after those given before; `then` gets its outcome on the deciding thread."""
        with self._lock:
            if self._closed:
                return
            command = _Command(what, action, then)
            self._left.append(command)
            self._undelivered.append(command)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._thread.start()
            self._lock.notify()

    def deliver(self) -> None:
        """Hand over the outcomes that have come. If a `then` raises, those behind it stay for the next call."""
        while True:
            with self._lock:
                if not self._outcomes:
                    return
                command, outcome = self._outcomes.popleft()
                self._undelivered.popleft()
            command.then(outcome)

    def abandon(self, last: Callable[[], object]) -> None:
        """Give up all commands; their outcomes are not delivered."""
        with self._lock:
            self._last = last
            self._left.clear()
            self._outcomes.clear()
            self._undelivered.clear()
        self.close()
        threading.Thread(target=_quietly, args=(last,), name=f"{self._name}-last", daemon=True).start()

    def close(self) -> None:
        """No further command comes; the thread ends behind those that were given."""
        with self._lock:
            self._closed = True
            self._lock.notify()

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._left or self._closed)
                if not self._left:
                    break
                command = self._left.popleft()
            outcome = outcome_of(command.action)
            with self._lock:
                if self._last is not None:
                    break
                self._outcomes.append((command, outcome))
            self._wake()
        if self._last is not None:
            _quietly(self._last)


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception:
        log.exception("a last command failed")
