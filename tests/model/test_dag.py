"""The graph of a job's queries: its order, who is before and behind whom, and what it refuses."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from tests.support.graphs import chain, graphs, random_graph


def node(uid: str, reads: str = "", writes: str = "", after: str = "") -> QueryNode:
    readers = tuple(Reader(exchange, f"from {exchange}") for exchange in reads.split())
    return QueryNode(uid, readers, tuple(writes.split()), tuple(after.split()))


def edges(graph: JobGraph) -> set[tuple[str, str]]:
    writers = {exchange: one.uid for one in graph.nodes for exchange in one.writes}
    linked = {(writers[reader.exchange], one.uid) for one in graph.nodes for reader in one.reads}
    return linked | {(gate, one.uid) for one in graph.nodes for gate in one.after}


def reached(graph: JobGraph, query: str) -> set[str]:
    """Everything behind a query, by repetition until nothing is added."""
    found: set[str] = set()
    while new := {after for before, after in edges(graph) if before == query or before in found} - found:
        found |= new
    return found


def test_the_parts_of_a_graph_with_an_exchange_read_twice() -> None:
    left, right = node("left", writes="a"), node("right", writes="b unread")
    graph = JobGraph((node("join", reads="a b"), left, right, node("report", after="join")))
    assert graph.order == ("left", "right", "join", "report")
    assert [one.uid for one in graph] == list(graph.order)
    assert graph.exchanges == ("a", "b", "unread")
    assert graph.roots == ("left", "right")
    assert (graph.producer("unread"), graph.consumers("unread")) == ("right", ())
    assert graph.consumers("a") == (("join", Reader("a", "from a")),)
    assert graph.producers("join") == graph.upstreams("join") == ("left", "right")
    assert (graph.producers("report"), graph.upstreams("report")) == ((), ("join",))
    assert (graph.downstreams("join"), graph.descendants("left")) == (("report",), ("join", "report"))
    assert graph["join"].reads[1].exchange == "b"
    graph = JobGraph((node("a", writes="x"), QueryNode("self-join", (Reader("x", "l"), Reader("x", "r")))))
    assert graph.producers("self-join") == ("a",)
    assert [reader.uid for _, reader in graph.consumers("x")] == ["l", "r"]
    assert graph.downstreams("a") == ("self-join",)


def test_each_edge_points_to_the_right_in_a_picture() -> None:
    diamond = JobGraph(
        (
            QueryNode("in", writes=("x",)),
            QueryNode("sum", (Reader("x", "x-sum"),), ("y",)),
            QueryNode("out", (Reader("x", "x-out"), Reader("x", "x-again"), Reader("y", "y-out"))),
            QueryNode("later", after=("out",)),
        )
    )
    assert diamond.edges() == (("in", "sum", "x"), ("in", "out", "x"), ("sum", "out", "y"), ("out", "later", ""))
    places = diamond.layout()
    assert [places[uid][0] for uid in ("in", "sum", "out", "later")] == [0, 1, 2, 3]
    assert places["in"][1] == places["out"][1] != places["sum"][1], "the edge over it does not pass through it"


@given(graph=graphs())
def test_no_two_queries_have_one_place_in_a_picture(graph: JobGraph) -> None:
    places = graph.layout()
    assert set(places) == set(graph.order)
    assert len(set(places.values())) == len(places)
    assert all(places[upstream][0] < places[downstream][0] for upstream, downstream, _ in graph.edges())


@given(graphs(10))
def test_order_neighbours_and_descendants_follow_the_edges(graph: JobGraph) -> None:
    place = {uid: number for number, uid in enumerate(graph.order)}
    assert sorted(place) == sorted(one.uid for one in graph.nodes)
    assert all(place[before] < place[after] for before, after in edges(graph))
    assert {(before, one) for one in graph.order for before in graph.upstreams(one)} == edges(graph)
    assert {(one, after) for one in graph.order for after in graph.downstreams(one)} == edges(graph)
    assert set(graph.roots) == set(graph.order) - {after for _, after in edges(graph)}
    again = JobGraph(tuple(graph))
    assert again.order == graph.order == tuple(one.uid for one in again.nodes)
    for query in graph.order:
        found = graph.descendants(query)
        assert set(found) == reached(graph, query)
        assert sorted(found, key=graph.order.index) == list(found)


@given(graphs(8), st.randoms(use_true_random=False))
def test_r4_nothing_unfinished_is_upstream_of_something_finished(graph: JobGraph, chance: random.Random) -> None:
    finished = {query for query in graph.order if chance.random() < 0.5}
    expected = {(before, after) for before, after in edges(graph) if after in finished and before not in finished}
    found = graph.unfinished_upstreams(finished)
    assert set(found) == expected and len(found) == len(expected)


@pytest.mark.parametrize(
    ("nodes", "cycle", "at"),
    [
        (
            [node("a", "z", "x"), node("b", "x", "y"), node("c", "y", "z")],
            "'a' -> (exchange 'x') -> 'b' -> (exchange 'y') -> 'c' -> (exchange 'z') -> 'a'",
            "query 'b', query 'c', query 'a'",
        ),
        (
            [node("root", "", "in"), node("a", "in", "x", after="c"), node("b", "x", "y"), node("c", "y")],
            "'a' -> (exchange 'x') -> 'b' -> (exchange 'y') -> 'c' -> (after) -> 'a'",
            "query 'b', query 'c', query 'a'",
        ),
        ([node("a", "x", "x")], "'a' -> (exchange 'x') -> 'a'", "query 'a'"),
        ([node("a", after="a")], "'a' -> (after) -> 'a'", "query 'a'"),
    ],
)
def test_a_cycle_is_refused_and_printed_in_order(nodes: list[QueryNode], cycle: str, at: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        JobGraph(tuple(nodes))
    assert refused.value.what == f"the queries form a cycle: {cycle}"
    assert refused.value.operator == at


@given(st.integers(0, 2**32))
def test_an_edge_from_a_descendant_is_a_cycle_of_existing_edges(seed: int) -> None:
    chance = random.Random(seed)
    graph = random_graph(chance, 8)
    query = chance.choice(graph.order)
    last = chance.choice([query, *graph.descendants(query)])
    changed = tuple(replace(one, after=(*one.after, last)) if one.uid == query else one for one in graph.nodes)
    with pytest.raises(ConfigurationError, match="form a cycle") as refused:
        JobGraph(changed)
    named = [part.strip("'") for part in refused.value.what.partition("cycle: ")[2].split(" -> ")[::2]]
    assert named[0] == named[-1] and len(set(named)) == len(named) - 1
    known = edges(graph) | {(last, query)}
    assert all(step in known for step in itertools.pairwise(named))


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([node("a", "nowhere"), node("b", "", "x")], ["'a'", "'from nowhere'", "'nowhere'", "exchanges are 'x'"]),
        ([node("a", "nowhere")], ["'a'", "'nowhere'", "it has no exchanges"]),
        ([node("a", "", "x"), node("b", "", "x")], ["'a'", "'b'", "'x'", "one producer"]),
        ([node("a", "", "x x")], ["'a'", "'x'", "twice"]),
        ([node("a", after="gone"), node("b")], ["'a'", "'gone'", "queries are 'a', 'b'"]),
        ([node("a"), node("a")], ["two queries", "'a'"]),
        ([node("a", "", "x y"), QueryNode("b", (Reader("x", "r"), Reader("y", "r")))], ["'b'", "two sources", "'r'"]),
    ],
)
def test_what_does_not_fit_is_refused_by_name(nodes: list[QueryNode], named: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        JobGraph(tuple(nodes))
    assert [part for part in named if part not in refused.value.what] == []
    assert refused.value.operator and refused.value.kept and refused.value.do


def test_a_long_list_of_names_is_cut() -> None:
    with pytest.raises(ConfigurationError, match="'q9' and 10 more") as refused:
        JobGraph((*(node(f"q{number}") for number in range(19)), node("a", after="gone")))
    assert "'q10'" not in refused.value.what


def test_p9_a_chain_of_10_000_queries_is_a_graph() -> None:
    """Conformance P9: neither the stack nor the order of addition limits it."""
    graph = chain(10_000)
    assert graph.order == tuple(f"q{number}" for number in range(10_000))
    assert len(graph.descendants("q0")) == 9_999
