"""One service for all requests of a process: one commit for what waits, in the order of arrival."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Accepted, ControlRefused, Refusal, Request
from spark_ext.control.service import ControlService
from spark_ext.errors import StorageError
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.ledger.tables import CHECKPOINT_EVERY, LedgerTable
from tests.control.states import State
from tests.support.waiting import until


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


@pytest.fixture
def service(state: State) -> Iterator[ControlService]:
    made = ControlService(Ledger(state.path))
    yield made
    made.close()


def set_key(number: int, key: str | None = None) -> Request:
    return Request("set_config", "job", {"key": "k", "value": number}, idempotency_key=key)


def stored(state: State) -> list[ControlEventRow]:
    return sorted(Ledger(state.path).table(ControlEventRow).rows(), key=lambda row: row.sequence)


@contextmanager
def held(service: ControlService) -> Iterator[Future[Accepted]]:
    """Nothing is committed while the block runs; the thread has taken a first request."""
    with service.log._lock:
        first = service.offer(set_key(0))
        until(lambda: service.waiting == 0, "the thread has taken the first one")
        yield first


def test_a_refused_request_raises_and_the_others_are_accepted(service: ControlService) -> None:
    with held(service) as first:
        bad, good = service.offer(Request("nonsense")), service.offer(set_key(2))
    with pytest.raises(ControlRefused) as refused:
        bad.result()
    assert refused.value.refusal is Refusal.UNKNOWN_KIND
    assert (first.result().event.sequence, good.result().event.sequence) == (1, 2)


def test_what_waits_is_one_commit_in_the_order_of_arrival(state: State, service: ControlService) -> None:
    service.submit(set_key(-1))
    before = state.ledger.table(ControlEventRow)
    before.refresh()
    version = before.version
    with held(service) as first:
        later = [service.offer(set_key(number)) for number in range(1, 200)]
    sequences = [one.result().event.sequence for one in (first, *later)]
    assert sequences == sorted(sequences)
    assert [row.value["value"] for row in stored(state)] == list(range(-1, 200))
    before.refresh()
    assert version is not None and before.version == version + 2


def test_a_full_queue_refuses_with_a_time_to_wait(state: State) -> None:
    service = ControlService(Ledger(state.path), capacity=3)
    with held(service) as taken:
        waiting = [service.offer(set_key(number)) for number in range(1, 4)]
        with pytest.raises(ControlRefused) as refused:
            service.offer(set_key(4))
        assert refused.value.refusal is Refusal.BUSY and refused.value.retry_after > 0
    assert [one.result().event.sequence for one in (taken, *waiting)] == [1, 2, 3, 4]
    service.close()


def test_commits_are_bounded_by_number_and_bytes(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    service = ControlService(Ledger(state.path), batch=10)
    sizes: list[int] = []
    accept = service.log.accept

    def counted(requests: list[Request]) -> object:
        sizes.append(len(requests))
        return accept(requests)

    monkeypatch.setattr(service.log, "accept", counted)
    monkeypatch.setattr("spark_ext.control.service.BATCH_BYTES", 5_000)
    with held(service) as first:
        futures = [first]
        futures += [service.offer(set_key(number)) for number in range(25)]
        futures += [service.offer(Request("set_config", "job", {"key": "k", "value": "x" * 3_000})) for _ in range(3)]
    service.close()
    assert [one.result().event.sequence for one in futures] == list(range(1, 30))
    assert sizes == [1, 10, 10, 6, 1, 1]


def test_a_failed_one_repeats_with_keys(state: State, service: ControlService, monkeypatch: pytest.MonkeyPatch) -> None:
    service.submit(set_key(0))
    swap, fails = service.log._swap, [True]

    def commits_and_fails(*arguments: Any) -> bool:
        done = swap(*arguments)
        if any(fails):
            fails.clear()
            raise StorageError("the answer of the storage was lost")
        return done

    monkeypatch.setattr(service.log, "_swap", commits_and_fails)
    with service.log._lock:
        keyed = service.offer(set_key(1, "a"))
        until(lambda: service.waiting == 0, "the thread has taken it")
    assert keyed.result().repeated
    fails.append(True)
    plain = service.offer(set_key(2))
    with pytest.raises(StorageError, match="the answer of the storage was lost"):
        plain.result()
    # Each of them once, whether its answer came or not.
    assert [row.value["value"] for row in stored(state)] == [0, 1, 2]


def test_closing_answers_those_that_wait_and_refuses_later_ones(state: State) -> None:
    service = ControlService(Ledger(state.path))
    with service.log._lock:
        waiting = [service.offer(set_key(number)) for number in range(5)]
        closing = threading.Thread(target=service.close)
        closing.start()
    closing.join()
    assert [one.result().event.sequence for one in waiting] == [1, 2, 3, 4, 5]
    with pytest.raises(ControlRefused) as refused:
        service.submit(set_key(6))
    assert refused.value.refusal is Refusal.BUSY
    service.close()


def test_a_commit_waits_for_those_that_were_answered_together(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ext.control.service.LINGER_S", 3600.0)
    service = ControlService(Ledger(state.path))
    assert service.submit(set_key(0)).event.sequence == 1  # it was alone, and so is the next one
    assert service.submit(set_key(1)).event.sequence == 2
    with service._wake:
        both = [service.offer(set_key(number)) for number in (2, 3)]
    for one in both:
        one.result()
    version = service.log._version
    assert version is not None
    first = service.offer(set_key(4))
    second = service.offer(set_key(5))
    assert (first.result().event.sequence, second.result().event.sequence) == (5, 6)
    assert service.log._version == version + 1
    last = service.offer(set_key(6))
    assert not last.done()
    service.close()  # does not wait for the other one
    assert last.result().event.sequence == 7


@pytest.mark.slow(2, "as many commits as there are between two checkpoints of the log")
def test_nobody_waits_for_a_checkpoint_of_the_log_but_closing(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go = threading.Event(), threading.Event()
    checkpoint = ControlLog.checkpoint_log

    def held(log: ControlLog) -> None:
        began.set()
        assert go.wait(60)
        checkpoint(log)

    monkeypatch.setattr(ControlLog, "checkpoint_log", held)
    service = ControlService(Ledger(state.path))
    number = 0
    while not began.is_set():
        number += 1
        assert service.submit(set_key(number)).event.sequence == number
    assert number < 2 * CHECKPOINT_EVERY
    for more in range(3):
        assert service.submit(set_key(more)).event.sequence == number + more + 1
    closing = threading.Thread(target=service.close)
    closing.start()
    service._thread.join()
    assert closing.is_alive()
    go.set()
    closing.join()
    assert list((Path(Ledger(state.path).table(ControlEventRow).uri) / "_delta_log").glob("*.checkpoint.parquet"))
    assert [row.sequence for row in stored(state)] == list(range(1, number + 4))


@pytest.mark.slow(2, "as many commits as there are between two checkpoints of the log")
def test_a_failed_checkpoint_fails_none(
    state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(table: LedgerTable[ControlEventRow]) -> None:
        raise StorageError("the disk is full", operator="it", kept="all", do="wait")

    monkeypatch.setattr(LedgerTable, "checkpoint_log", fails)
    service = ControlService(Ledger(state.path))
    for number in range(1, CHECKPOINT_EVERY + 2):
        assert service.submit(set_key(number)).event.sequence == number
    service.close()
    assert "could not checkpoint the log" in caplog.text


@pytest.mark.slow(1, "eighty commits to one Delta log, of two services at once")
def test_two_services_and_many_threads_give_one_order(state: State) -> None:
    services = [ControlService(Ledger(state.path)) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: services[number % 2].submit(set_key(number)), range(80)))
    for service in services:
        service.close()
    rows = stored(state)
    assert [row.sequence for row in rows] == list(range(1, 81))
    assert {row.event_id: row.value["value"] for row in rows} == {
        one.event.event_id: number for number, one in enumerate(answers)
    }
