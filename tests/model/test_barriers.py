"""Aligned barriers: what a source may plan, what a query's cut is, and random jobs, which must not hang."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.model.barriers import Advance, BarrierEntry, Checkpoints, SourceBarrier, advance, aligned_cut, barrier_of
from tests.support.barrier_jobs import BarrierJob
from tests.support.graphs import random_graph

PENDING = Checkpoints(3, frozenset({3}))

seeds = st.integers(0, 2**32)


def source(uid: str, barrier: int = 0, *, position: int = 0, ended: bool = False) -> SourceBarrier:
    return SourceBarrier(uid, barrier, position, ended)


def external(uid: str, barrier: int = 0, *, ended: bool = False) -> SourceBarrier:
    return SourceBarrier(uid, barrier, ended=ended, external=True)


def test_it_stays_there_until_the_others_carry_it_or_have_ended() -> None:
    at = source("a", 3, position=5)
    others = [source("b"), external("c", 2), source("d", 3), source("e", ended=True)]
    assert advance(at, others, PENDING) == Advance(5, 3, 3, ("b", "c"))
    delivered = [replace(other, barrier=3) for other in others]
    assert advance(at, delivered, PENDING, [BarrierEntry(7, 4)]) == Advance(8, 4, 3)
    assert advance(at, delivered, PENDING) == Advance(None, 3, 3)


@pytest.mark.core
def test_an_entry_that_passes_over_a_pending_barrier_carries_it() -> None:
    """4 was aborted, 3 was not: the first entry with either carries 4."""
    known = Checkpoints(4, frozenset({3}))
    assert advance(source("a"), [], known, [BarrierEntry(6, 4)]) == Advance(7, 4, 0)
    assert advance(source("a", 3), [], known, [BarrierEntry(6, 4)]) == Advance(None, 3, 3)


def test_a_source_stamps_by_itself_only_behind_unmet_barriers() -> None:
    """Its producer delivered 3 and finished before 4 was triggered."""
    known = Checkpoints(4, frozenset({3, 4}))
    assert advance(source("a"), [], known, [BarrierEntry(6, 3)], own=4) == Advance(7, 3, 0)
    assert advance(source("a", 3, position=7), [], known, own=4) == Advance(None, 4, 4)


def test_u8_an_ended_source_stamps_nothing_and_holds_nobody_back() -> None:
    assert advance(source("a", 1, position=8, ended=True), [source("b")], PENDING, own=3).stamp(8) == 1
    assert advance(source("b", 3), [source("a", 1, ended=True)], PENDING).waits_for == ()


@pytest.mark.parametrize(
    ("epoch", "barrier"),
    [
        ([], 0), ([source("a", 3), source("b", 2)], 2), ([source("a", 3), source("b", 2, ended=True)], 3),
        ([source("a", 3, ended=True), source("b", 2, ended=True)], 3), ([source("a", ended=True)], 0),
        ([source("a", 3), external("c")], 0),
    ],
)  # fmt: skip
def test_an_epoch_has_delivered_what_all_live_sources_carry(epoch: list[SourceBarrier], barrier: int) -> None:
    assert barrier_of(epoch) == barrier


def test_u8_the_cut_is_where_all_first_have_delivered_or_ended() -> None:
    epochs: list[tuple[int, Sequence[SourceBarrier]]] = [
        (7, [source("a"), source("b", 1)]),
        (8, [source("a", 2), source("b", 1)]),
        (9, [source("a", 2), source("b", 1, ended=True)]),
        (10, [source("a", 2, ended=True), source("b", 1, ended=True)]),
    ]
    assert [aligned_cut(epochs, checkpoint) for checkpoint in (1, 2, 3)] == [8, 9, None]


def test_p7_a_query_that_ends_without_the_barrier_has_no_cut() -> None:
    assert aligned_cut([(0, [source("a")]), (1, [source("a", ended=True)])], 1) is None


def run(job: BarrierJob, steps: int) -> bool:
    """Random steps, then fair ones until nothing is pending; False if it hangs: some sources never end."""
    for _ in range(steps):
        job.anything()
    for _ in range(60):
        if job.ledger.plans:
            job.fairly()
    return not job.ledger.plans


def catches_up(job: BarrierJob) -> bool:
    """Whether each consumer reads what is there now, with no further checkpoint."""
    behind = job.behind()
    before = {source.uid: source.position for epochs in job.epochs.values() for source in epochs[-1]}
    for _ in range(40):
        job.fairly()
    after = {source.uid: source.position for epochs in job.epochs.values() for source in epochs[-1]}
    return all(after[uid] >= before[uid] + entries for uid, entries in behind.items())


def random_job(seed: int) -> BarrierJob:
    chance = random.Random(seed)
    return BarrierJob(random_graph(chance, 6), chance, chance.choice((1, 1, 3)))


@pytest.mark.core
@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(seeds)
def test_u1_every_checkpoint_completes_at_its_producers_barrier(seed: int) -> None:
    job = random_job(seed)
    assert run(job, 150), f"hangs: {job.ledger}"
    assert list(job.problems()) == []
    assert catches_up(job), "a source stays at a barrier"


@settings(deadline=None)
@given(seeds)
def test_the_barrier_of_a_query_never_decreases(seed: int) -> None:
    job = random_job(seed)
    run(job, 100)
    for epochs in job.epochs.values():
        barriers = [barrier_of(epoch) for epoch in epochs]
        assert barriers == sorted(barriers)
    for log in job.logs.values():
        assert log.barriers == sorted(log.barriers)


def test_the_random_jobs_show_all_of_it() -> None:
    """Completed and aborted checkpoints, cuts beside finished queries, and plans changed on the way."""
    jobs = [random_job(seed) for seed in range(100)]
    for job in jobs:
        run(job, 150)
    assert sum(len(job.completed) for job in jobs) > 200
    assert sum(job.aborted for job in jobs) > 50
    assert sum(bool(plan.finished and cuts) for job in jobs for _, plan, cuts in job.completed) > 30
    aligned = sum(
        not plan.stamps_itself(query, reader.exchange)
        for job in jobs
        for _, plan, cuts in job.completed
        for query in cuts
        for reader in job.graph[query].reads
    )
    assert aligned > 100
