"""The worker of a query: commands in their order on one thread, outcomes on the thread that decides."""

import threading
from collections.abc import Iterator

import pytest

from spark_ext.queries.worker import Outcome, Worker
from tests.support.waiting import until

END = 10.0


class Desk:
    def __init__(self) -> None:
        self.wake = threading.Event()
        self.worker = Worker("w", self.wake.set)
        self.came: list[tuple[str, object]] = []
        self.threads: set[str] = set()

    def do(self, what: str, action: object = None) -> None:
        def act() -> object:
            self.threads.add(threading.current_thread().name)
            return action() if callable(action) else action

        self.worker.do(what, act, lambda outcome: self._keep(what, outcome))

    def _keep(self, what: str, outcome: Outcome[object]) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.came.append((what, outcome.error or outcome.value))

    def settle(self) -> None:
        def settled() -> bool:
            self.worker.deliver()
            return not self.worker.busy

        until(settled, "all outcomes", END)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.worker.close()


def test_commands_run_in_order_and_answer_the_thread_that_asks(desk: Desk) -> None:
    for number in range(50):
        desk.do(str(number), number)
    assert desk.worker.busy, "nothing is delivered by itself"
    desk.settle()
    assert desk.came == [(str(number), number) for number in range(50)]
    assert desk.threads == {"w"} and desk.wake.is_set()


def test_what_a_command_raises_is_its_outcome(desk: Desk) -> None:
    problem = ValueError("a hook")

    def fail() -> None:
        raise problem

    desk.do("one", fail)
    desk.do("leave", lambda: exit(3))
    desk.do("two", 2)
    desk.settle()
    assert desk.came[0] == ("one", problem) and desk.came[2] == ("two", 2)
    assert isinstance(desk.came[1][1], RuntimeError)


def test_it_is_busy_until_the_outcome_is_delivered(desk: Desk) -> None:
    gate = threading.Event()
    desk.do("slow", gate.wait)
    desk.do("next")
    desk.worker.deliver()
    assert desk.worker.busy == "slow" and not desk.came
    gate.set()
    desk.settle()
    assert [what for what, _ in desk.came] == ["slow", "next"]


def test_an_abandoned_one_finishes_but_delivers_nothing(desk: Desk) -> None:
    gate, lasts = threading.Event(), []
    desk.do("start", gate.wait)
    until(lambda: desk.threads, "the command is under way", END)
    desk.do("never", lambda: lasts.append("never"))
    desk.worker.abandon(lambda: lasts.append("last"))
    until(lambda: lasts == ["last"], "at once, on another thread", END)
    gate.set()
    until(lambda: lasts == ["last"] * 2, "and again: what was under way may have started something", END)
    desk.worker.deliver()
    assert not desk.came and not desk.worker.busy
