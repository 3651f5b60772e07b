"""Conformance P1 to P9: which queries take part in a checkpoint, by the graph and the phase of each query."""

import itertools
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.model.checkpoint_metadata import Finish
from spark_ext.model.checkpoint_plan import CheckpointPlan, NotNow, Phase, Reason, plan_checkpoint
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.lifecycle import LEGAL, State
from tests.support.graphs import chain, graphs, layers

CAN_DELIVER = [Phase.RUNNING, Phase.FINISHED, Phase.GATED]

DIAMOND = JobGraph(
    (
        QueryNode("a", writes=("ab", "ac")),
        QueryNode("other", writes=("oc",)),
        QueryNode("b", (Reader("ab", "b.a"),), ("bd",)),
        QueryNode("c", (Reader("ac", "c.a"), Reader("oc", "c.o")), ("cd",)),
        QueryNode("d", (Reader("bd", "d.b"), Reader("cd", "d.c"))),
    )
)


def planned(graph: JobGraph, finished: str = "", gated: str = "") -> CheckpointPlan:
    phases = dict.fromkeys(graph.order, Phase.RUNNING)
    phases |= dict.fromkeys(finished.split(), Phase.FINISHED) | dict.fromkeys(gated.split(), Phase.GATED)
    plan = plan_checkpoint(graph, phases)
    assert isinstance(plan, CheckpointPlan)
    return plan


@given(graphs(9), st.randoms(use_true_random=False))
def test_p1_p2_p3_p4_triggered_if_it_runs_and_no_producer_does(graph: JobGraph, chance: random.Random) -> None:
    phases = {query: chance.choice(CAN_DELIVER) for query in graph.order}
    plan = plan_checkpoint(graph, phases)
    assert isinstance(plan, CheckpointPlan)
    running = {query for query in graph.order if phases[query] is Phase.RUNNING}
    writers = {exchange: node.uid for node in graph.nodes for exchange in node.writes}
    assert plan.wait_for == running
    assert plan.finished == {query for query in graph.order if phases[query] is Phase.FINISHED}
    for node in graph.nodes:
        alone = all(writers[reader.exchange] not in running for reader in node.reads)
        assert (node.uid in plan.trigger) == (node.uid in running and alone)
        for reader in node.reads:
            # Behind a producer that has finished, what is left is read to its end first.
            by_itself = node.uid in running and phases[writers[reader.exchange]] is Phase.GATED
            assert plan.stamps_itself(node.uid, reader.exchange) == by_itself
        assert plan.stamps_itself(node.uid) == (node.uid in running)
        # Whoever is waited for is reached by a barrier, stamps it, or reads to the end.
        before = {one for one in graph.order if node.uid in graph.descendants(one)}
        assert node.uid not in plan.wait_for or plan.trigger & {node.uid, *before}


@pytest.mark.parametrize(
    ("phase", "reason"),
    [(Phase.STARTING, Reason.STARTING), (Phase.RESTARTING, Reason.RESTARTING), (Phase.FAILED, Reason.FAILED)],
)
@pytest.mark.parametrize("query", ["a", "d"])
def test_p5_a_query_that_does_not_run_prevents_one_by_name(query: str, phase: Phase, reason: Reason) -> None:
    phases = dict.fromkeys(DIAMOND.order, Phase.RUNNING) | {query: phase}
    assert plan_checkpoint(DIAMOND, phases) == NotNow(reason, query)


def test_p5_the_first_in_the_order_of_the_flow_is_named() -> None:
    phases = {"d": Phase.FAILED, "a": Phase.FINISHED, "b": Phase.RESTARTING, "c": Phase.STARTING}
    found = plan_checkpoint(DIAMOND, phases | {"other": Phase.RUNNING})
    assert found == NotNow(Reason.RESTARTING, "b")
    assert str(found) == "query 'b': the query is being restarted"


@given(graphs(7), st.randoms(use_true_random=False))
def test_p6_a_canceled_query_prevents_a_checkpoint(graph: JobGraph, chance: random.Random) -> None:
    canceled = chance.choice(graph.order)
    phases = {query: chance.choice(CAN_DELIVER) for query in graph.order} | {canceled: Phase.CANCELED}
    assert plan_checkpoint(graph, phases) == NotNow(Reason.CANCELED, canceled)


@given(graphs(9), st.randoms(use_true_random=False), st.integers(1, 3))
def test_p7_the_changed_plan_is_the_plan_from_the_beginning(graph: JobGraph, chance: random.Random, step: int) -> None:
    phases = {query: chance.choice(CAN_DELIVER) for query in graph.order}
    plan = plan_checkpoint(graph, phases)
    assert isinstance(plan, CheckpointPlan)
    left = sorted(plan.wait_for)
    chance.shuffle(left)
    while left:
        ended, left = left[:step], left[step:]
        phases |= dict.fromkeys(ended, Phase.FINISHED)
        plan = plan.without(*ended)
        assert plan == plan.without(*ended) == plan_checkpoint(graph, phases)
    assert not plan.trigger and not plan.wait_for


def test_p7_only_who_is_waited_for_can_finish() -> None:
    plan = planned(DIAMOND, gated="d")
    with pytest.raises(ValueError, match="not waited for: d"):
        plan.without("a", "d")


def test_f8_a_checkpoint_is_complete_once_nothing_is_missing() -> None:
    plan = planned(DIAMOND, "a other b")
    assert plan.missing([]) == {"c", "d"}
    assert plan.missing(["d"]) == plan.without("d").missing([]) == {"c"}
    assert not plan.without("c", "d").missing([])


@given(st.lists(st.sampled_from(Finish)), st.booleans())
def test_p8_a_query_that_runs_is_partly_finished_at_most(sources: list[Finish], started: bool) -> None:
    """Conformance P8: even with sources that have all ended, it has its end still to come."""
    found = planned(DIAMOND).finish("c", sources, started=started)
    assert found is (Finish.PARTLY if set(sources) - {Finish.NONE} else Finish.NONE)
    assert planned(DIAMOND, "c").finish("c", sources, started=started) is (
        Finish.FULLY if started else Finish.ON_RESTORE
    )


def test_each_state_of_a_query_has_a_phase() -> None:
    found = {state: Phase.of(state) for state in LEGAL}
    assert set(found.values()) == set(Phase) - {Phase.GATED}
    assert found[State.FINISHING] is Phase.RUNNING, "until its final checkpoint is complete it is waited for"
    assert Phase.of(State.CREATED, gated=True) is Phase.GATED


def steps(work: Callable[[], Any]) -> int:
    """Lines of Python that some work takes: unlike its time, the same on every machine.

    Not instructions: the first trace of a process sees none of them in some releases of Python 3.12.
    """
    count = 0

    def trace(_frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def plan_and_finish(shape: Callable[[int], JobGraph], size: int) -> None:
    graph = shape(size)
    assert isinstance(planned(graph).without(*itertools.islice(graph.order, len(graph.order) // 2)), CheckpointPlan)


@pytest.mark.parametrize("shape", [chain, lambda size: layers(size // 10, 10), lambda size: layers(10, size // 10)])
def test_p9_the_work_is_linear_in_the_number_of_queries(shape: Callable[[int], JobGraph]) -> None:
    few, many = steps(lambda: plan_and_finish(shape, 100)), steps(lambda: plan_and_finish(shape, 1_000))
    assert 5 * few < many < 11 * few


@pytest.mark.parametrize("shape", [chain, lambda size: layers(size // 10, 10)])
def test_p9_plans_10_000_queries(shape: Callable[[int], JobGraph]) -> None:
    graph = shape(10_000)
    plan = planned(graph)
    assert plan.trigger == set(graph.roots) and len(plan.wait_for) == 10_000
    assert not plan.without(*graph.order).wait_for
