"""Periodic checkpoints that are retained: one that was not kept is made up for, also when nothing happens any more."""

import itertools
from collections.abc import Callable
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

from spark_ext.jobs.checkpointing.periodic import PeriodicCheckpoints
from spark_ext.model.lifecycle import State
from spark_ext.queries.worker import Outcome
from spark_ext.settings import JobSettings


class Kept:
    """Retained checkpoints whose worker answers when the test says so."""

    def __init__(self) -> None:
        self.epochs: list[int] = []  # where the query was in each that was begun
        self.then: Callable[[Outcome[Any]], None] = lambda _: None
        self.run = SimpleNamespace(spec=SimpleNamespace(uid="q"), committed=0, input_done=False, state=State.RUNNING)
        context: Any = SimpleNamespace(checkpointing=JobSettings(checkpoint_interval=1_000, retained_checkpoints=3))
        execution: Any = SimpleNamespace(runs=[self.run], looks=lambda: {"q": self.run.committed})
        exchanges: Any = SimpleNamespace(newest=None, links=())
        savepoints: Any = SimpleNamespace(pin=self._pin, take_id=partial(next, count(1)))
        self._made = PeriodicCheckpoints(context, execution, exchanges, savepoints)
        self._made._at = self.now = 0.0

    def _pin(self, number: int, kind: str, mode: object, looks: Any, folder: None, then: Any) -> None:
        self.epochs.append(looks["q"])
        self.then = then

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1.5
            self._made.tick(self.now)


def test_one_due_while_another_is_being_kept_follows_it() -> None:
    """Its place does not count as recorded before: the newest checkpoint of an idle job is where it stands."""
    kept = Kept()
    kept.tick()
    kept.run.committed = 5
    kept.tick(3)
    assert kept.epochs == [0]
    kept.then(Outcome(None, None))
    kept.tick()
    kept.then(Outcome(None, None))
    kept.tick(5)
    assert kept.epochs == [0, 5], "and then there is nothing new"


def test_one_that_failed_is_tried_again_after_some_time() -> None:
    """Each failure is an incident, and copies files: an idle job on a full disk has few of them."""
    kept = Kept()
    times = []
    for _ in range(400):
        before = len(kept.epochs)
        kept.tick()
        if len(kept.epochs) > before:
            times.append(kept.now)
            kept.then(Outcome(None, OSError("the disk is full")))
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits[:4] == [3.0, 4.5, 9.0, 16.5] and set(waits[5:]) == {33.0}
    kept.tick(30)
    kept.then(Outcome(None, None))
    tries = len(kept.epochs)
    kept.run.committed = 5
    kept.tick()
    assert len(kept.epochs) == tries + 1
