"""Random graphs of linked queries, for tests of checkpoints."""

import random

import hypothesis.strategies as st

from spark_ext.model.dag import JobGraph, QueryNode, Reader


def random_graph(chance: random.Random, most: int, *, gates: bool = True) -> JobGraph:
    """A graph of at least one and at most that many queries, added in any order.

    Each reads exchanges of some queries before it, one of them perhaps twice, and is perhaps gated by others.
    """
    nodes: list[QueryNode] = []
    for number in range(chance.randint(1, most)):
        exchanges = [exchange for node in nodes for exchange in node.writes]
        read = chance.sample(exchanges, min(len(exchanges), chance.choice((0, 1, 1, 2, 3))))
        if read and chance.random() < 0.1:
            read.append(read[0])
        after = [node.uid for node in nodes if gates and chance.random() < 0.15 / (number + 1)]
        nodes.append(
            QueryNode(
                f"q{number}", tuple(Reader(exchange, f"q{number}.{place}") for place, exchange in enumerate(read)),
                tuple(f"x{number}.{place}" for place in range(chance.choice((0, 1, 1, 1, 2)))), tuple(after),
            )
        )  # fmt: skip
    chance.shuffle(nodes)
    return JobGraph(tuple(nodes))


def graphs(most: int = 7, *, gates: bool = True) -> st.SearchStrategy[JobGraph]:
    return st.builds(lambda seed: random_graph(random.Random(seed), most, gates=gates), st.integers(0, 2**32))


def chain(length: int) -> JobGraph:
    """A long chain q0 -> q1 -> ..., added from its end."""
    nodes = [QueryNode("q0", writes=("x0",))]
    nodes += [QueryNode(f"q{n}", (Reader(f"x{n - 1}", "r"),), (f"x{n}",)) for n in range(1, length)]
    return JobGraph(tuple(reversed(nodes)))


def layers(width: int, depth: int) -> JobGraph:
    """Layers of queries: each reads two of the layer before it."""
    nodes = [QueryNode(f"q0.{n}", writes=(f"x0.{n}",)) for n in range(width)]
    for layer in range(1, depth):
        for n in range(width):
            read = (f"x{layer - 1}.{n}", f"x{layer - 1}.{(n + 1) % width}")
            readers = tuple(Reader(exchange, f"r{place}") for place, exchange in enumerate(read))
            nodes.append(QueryNode(f"q{layer}.{n}", readers, (f"x{layer}.{n}",)))
    return JobGraph(tuple(nodes))
