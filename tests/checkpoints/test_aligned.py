"""An aligned checkpoint under way: what each look at the queries adds to it."""

from dataclasses import replace

from spark_ext.checkpoints.aligned import Aligned, Member, Place, unstamped_feed
from spark_ext.model.checkpoint_plan import CheckpointPlan, Phase, plan_checkpoint
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.offsets import LoggedOffsets, SourceOffset

C = QueryNode("c", (Reader("x", "x-c"), Reader("y", "y-c")))
GRAPH = JobGraph((QueryNode("a", (), ("x",)), QueryNode("b", (Reader("x", "x-b"),), ("y",)), C))
MEMBERS = (
    Member("a", roots=("in",)), Member("b", fed={"x-b": "x"}),
    Member("c", fed={"x-c": "x", "y-c": "y"}, roots=("side",)),
)  # fmt: skip


def begun(**phases: Phase) -> Aligned:
    plan = plan_checkpoint(GRAPH, {"a": Phase.RUNNING, "b": Phase.RUNNING, "c": Phase.RUNNING, **phases})
    assert isinstance(plan, CheckpointPlan)
    return Aligned(5, plan)


def epoch(number: int, **barriers: int | None) -> tuple[int, LoggedOffsets]:
    """An epoch whose sources carry these barriers; None: the source has ended."""
    sources = [
        SourceOffset(uid.replace("_", "-"), barrier=barrier or 0, ended=barrier is None).to_json()
        for uid, barrier in barriers.items()
    ]
    return number, LoggedOffsets(number, {}, tuple(sources))


def test_it_is_complete_when_every_query_has_committed_it() -> None:
    checkpoint = begun()
    assert checkpoint.missing == {"a", "b", "c"}
    first = replace(MEMBERS[0], epochs=(epoch(3, **{"in": 4}), epoch(4, **{"in": 5}), epoch(5, **{"in": 5})))
    checkpoint = checkpoint.seen((first, *MEMBERS[1:]))
    assert checkpoint.delivered["a"].epoch == 4, "the first that carries it"
    half = epoch(8, x_c=5, y_c=4, side=5)
    second = replace(MEMBERS[1], epochs=(epoch(7, x_b=5),))
    checkpoint = checkpoint.seen((second, replace(MEMBERS[2], epochs=(half,))))
    assert checkpoint.missing == {"c"}
    whole = epoch(9, x_c=5, y_c=5, side=5)
    checkpoint = checkpoint.seen((replace(MEMBERS[2], epochs=(half, whole)),))
    assert not checkpoint.missing and checkpoint.delivered["c"] == Place(9, whole[1])


def test_a_cut_behind_epochs_that_nobody_has_seen_is_not_known() -> None:
    """Spark had deleted them by the time of the look: an earlier one may have carried the barrier first."""
    checkpoint = begun().seen((replace(MEMBERS[0], epochs=(epoch(3, **{"in": 4}),)), *MEMBERS[1:]))
    later = replace(MEMBERS[0], epochs=(epoch(6, **{"in": 5}), epoch(7, **{"in": 5})))
    assert checkpoint.seen((later,)).lost == {"a"} and "a" in checkpoint.seen((later,)).missing
    assert checkpoint.seen((replace(MEMBERS[0], epochs=(epoch(4, **{"in": 5}),)),)).delivered["a"].epoch == 4
    gap = replace(MEMBERS[0], epochs=(epoch(5, **{"in": 4}), epoch(6, **{"in": 5})))
    assert checkpoint.seen((gap,)).delivered["a"].epoch == 6, "the one before it was seen without"


def alone(query: str) -> Aligned:
    plan = plan_checkpoint(JobGraph((QueryNode(query),)), {query: Phase.RUNNING})
    assert isinstance(plan, CheckpointPlan)
    return Aligned(5, plan)


def test_which_sources_begin_it() -> None:
    assert begun().stamps(MEMBERS) == ("in", "side"), "those that read from outside"
    # Nothing has been written by a query that is not built, so there is nothing that its readers could have read.
    assert set(begun(a=Phase.GATED).stamps(MEMBERS[1:])) == {"x-b", "x-c", "side"}
    # The exchange of a query that has left the job is sealed: what is left of it is read to the end.
    assert alone("c").stamps((Member("c", fed={"x-c": ""}, roots=("side",)),)) == ("side",)


def test_a_query_that_finishes_first_is_recorded_and_read_fully() -> None:
    """A source on a sealed exchange stamps nothing in the middle of what is left: two ways of a row would differ."""
    checkpoint = begun()
    checkpoint = checkpoint.seen((replace(MEMBERS[0], epochs=(epoch(3, **{"in": None}),), finished=True),))
    assert checkpoint.plan.finished == {"a"} and checkpoint.missing == {"b", "c"}
    assert checkpoint.stamps(MEMBERS) == ("side",)
    checkpoint = checkpoint.seen((replace(MEMBERS[1], epochs=(epoch(7, x_b=None),), finished=True),))
    assert checkpoint.missing == {"c"}
    checkpoint = checkpoint.seen((replace(MEMBERS[2], epochs=(epoch(8, x_c=None, y_c=None, side=5),)),))
    assert not checkpoint.missing and checkpoint.delivered["c"].epoch == 8


def test_a_query_that_finishes_after_delivery_counts_as_before() -> None:
    checkpoint = begun().seen((replace(MEMBERS[0], epochs=(epoch(3, **{"in": 5}),)),))
    checkpoint = checkpoint.seen((replace(MEMBERS[0], epochs=(epoch(4, **{"in": None}),), finished=True),))
    assert checkpoint.delivered["a"].epoch == 3 and checkpoint.plan.finished == frozenset()


def test_a_query_whose_sources_carry_no_barrier_is_where_it_is() -> None:
    newest = epoch(6)
    checkpoint = alone("a").seen((Member("a", (newest,), stamps=False),))
    assert not checkpoint.missing and checkpoint.delivered == {"a": Place(6, newest[1])}
    empty = alone("a").seen((Member("a", stamps=False),))
    assert not empty.missing and empty.delivered == {"a": Place(None, None)}


def test_one_that_feeds_others_is_named() -> None:
    members = {one.uid: one for one in MEMBERS}
    assert unstamped_feed(GRAPH, members) is None
    members["b"] = Member("b", stamps=False)
    assert unstamped_feed(GRAPH, members) == "b"
    assert unstamped_feed(GRAPH, {**members, "b": Member("b", stamps=False, finished=True)}) is None
