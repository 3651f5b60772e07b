"""The graph of a job's queries: exchanges link them, and gates (`after`) put one behind the end of another. Pure.

An exchange has one producer and any number of consumers. A gate carries no data: the gated query is built once the
other one has finished. Both count as edges of one directed acyclic graph, from upstream to downstream.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_ext.errors import ConfigurationError, refused


@dataclass(frozen=True)
class Reader:
    """A source of a query that reads an exchange."""

    exchange: str
    uid: str  # the source's uid; positions are kept under it


@dataclass(frozen=True)
class QueryNode:
    """A query in the graph."""

    uid: str
    reads: tuple[Reader, ...] = ()  # one exchange may be read more than once, as in a self-join
    writes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()  # queries that must have finished before this one is built


@dataclass(frozen=True)
class JobGraph:
    """The queries of a job in the order in which they were added, which need not be the order of the flow.

    An exchange that nobody reads is allowed: a reader may come later. Everything takes time linear in the number of
    queries and edges.
    """

    nodes: tuple[QueryNode, ...] = ()
    order: tuple[str, ...] = field(init=False, compare=False, repr=False)  # each behind its upstreams
    _nodes: Mapping[str, QueryNode] = field(init=False, compare=False, repr=False)
    _producers: Mapping[str, str] = field(init=False, compare=False, repr=False)
    _consumers: Mapping[str, tuple[tuple[str, Reader], ...]] = field(init=False, compare=False, repr=False)
    _downstreams: Mapping[str, tuple[str, ...]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._set(_nodes=_by_uid(self.nodes))
        self._set(_producers=_producers(self.nodes))
        self._check_ends()
        consumers: dict[str, list[tuple[str, Reader]]] = {exchange: [] for exchange in self._producers}
        downstreams: dict[str, dict[str, None]] = {node.uid: {} for node in self.nodes}
        for node in self.nodes:
            for reader in node.reads:
                consumers[reader.exchange].append((node.uid, reader))
            for upstream in self.upstreams(node.uid):
                downstreams[upstream][node.uid] = None
        self._set(_consumers={exchange: tuple(found) for exchange, found in consumers.items()})
        self._set(_downstreams={uid: tuple(found) for uid, found in downstreams.items()})
        self._set(order=tuple(self._in_order()))

    def __iter__(self) -> Iterator[QueryNode]:
        """The queries in the order of the flow."""
        return (self._nodes[uid] for uid in self.order)

    def __getitem__(self, query: str) -> QueryNode:
        return self._nodes[query]

    @property
    def exchanges(self) -> tuple[str, ...]:
        """All exchanges, in the order in which their producers were added."""
        return tuple(self._producers)

    @property
    def roots(self) -> tuple[str, ...]:
        """Queries without an upstream, in the order in which they were added."""
        return tuple(node.uid for node in self.nodes if not node.reads and not node.after)

    def producer(self, exchange: str) -> str:
        """The query that writes an exchange."""
        return self._producers[exchange]

    def consumers(self, exchange: str) -> tuple[tuple[str, Reader], ...]:
        """The queries that read an exchange, each with the source that does."""
        return self._consumers[exchange]

    def producers(self, query: str) -> tuple[str, ...]:
        """The producers of all exchanges that a query reads, each once."""
        return tuple(dict.fromkeys(self._producers[reader.exchange] for reader in self._nodes[query].reads))

    def upstreams(self, query: str) -> tuple[str, ...]:
        """The queries directly before one: its producers, then those of `after`; each once."""
        return tuple(dict.fromkeys((*self.producers(query), *self._nodes[query].after)))

    def downstreams(self, query: str) -> tuple[str, ...]:
        """The queries directly behind one, through exchanges or gates; each once, in the order of addition."""
        return self._downstreams[query]

    def descendants(self, query: str) -> tuple[str, ...]:
        """All queries behind one, in the order of the flow: what a reset of it has to reset as well."""
        seen: set[str] = set()
        ahead = [query]
        while ahead:
            new = [one for one in self._downstreams[ahead.pop()] if one not in seen]
            seen.update(new)
            ahead += new
        return tuple(uid for uid in self.order if uid in seen)

    def edges(self) -> tuple[tuple[str, str, str], ...]:
        """Upstream, downstream, and the exchange between them, "" for a gate; each once, in the order of the flow."""
        found = []
        for node in self:
            found += [(self._producers[reader.exchange], node.uid, reader.exchange) for reader in node.reads]
            found += [(gate, node.uid, "") for gate in node.after]
        return tuple(dict.fromkeys(found))

    def layout(self) -> dict[str, tuple[float, float]]:
        """Places in a picture: x, the length of the longest way from a root, and y around 0, evenly in each column."""
        columns: dict[str, int] = {}
        for uid in self.order:
            columns[uid] = max((columns[one] + 1 for one in self.upstreams(uid)), default=0)
        places: dict[str, tuple[float, float]] = {}
        for column in set(columns.values()):
            queries = [uid for uid in self.order if columns[uid] == column]
            # An odd column is shifted, so that an edge over it does not pass through a query.
            middle = (len(queries) - 1) / 2 + (-0.6 if column % 2 and len(queries) % 2 else 0.0)
            places |= {uid: (float(column), middle - row) for row, uid in enumerate(queries)}
        return places

    def unfinished_upstreams(self, finished: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Edges from an unfinished query to a finished one: no restore may begin from such a state."""
        done = set(finished)
        return tuple(
            (upstream, uid)
            for uid in self.order
            if uid in done
            for upstream in self.upstreams(uid)
            if upstream not in done
        )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_ends(self) -> None:
        for node in self.nodes:
            for reader in node.reads:
                if reader.exchange not in self._producers:
                    raise refused(
                        f"source '{reader.uid}' of query '{node.uid}' reads exchange '{reader.exchange}', "
                        f"which no query of the job writes; {_listed('exchanges', self._producers)}",
                        f"query '{node.uid}', source '{reader.uid}'",
                        "correct the name, or add the query that writes it",
                    )
            for gate in node.after:
                if gate not in self._nodes:
                    raise refused(
                        f"query '{node.uid}' is to be built after query '{gate}', which is not in the job; "
                        f"{_listed('queries', self._nodes)}",
                        f"query '{node.uid}'",
                        "correct the name in `after`, or add that query",
                    )

    def _in_order(self) -> list[str]:
        """Depth-first, upstreams before the query itself. Iterative: a chain may be longer than Python's stack."""
        order: list[str] = []
        done: set[str] = set()
        for node in self.nodes:
            path = [] if node.uid in done else [node.uid]
            ahead = [iter(self.upstreams(uid)) for uid in path]
            on_path = set(path)
            while path:
                upstream = next(ahead[-1], None)
                if upstream is None:
                    ahead.pop()
                    on_path.discard(path[-1])
                    done.add(path[-1])
                    order.append(path.pop())
                elif upstream in on_path:
                    raise self._cycle(path, upstream)
                elif upstream not in done:
                    path.append(upstream)
                    on_path.add(upstream)
                    ahead.append(iter(self.upstreams(upstream)))
        return order

    def _cycle(self, path: list[str], begin: str) -> ConfigurationError:
        flow = path[path.index(begin) :]
        # The path leads upstream: reversed it is the flow, which ends where it begins.
        flow = [begin, *reversed(flow)]
        text = f"'{begin}'"
        for upstream, uid in itertools.pairwise(flow):
            text += f" -> {self._edge(upstream, uid)} -> '{uid}'"
        return refused(
            f"the queries form a cycle: {text}",
            ", ".join(f"query '{uid}'" for uid in flow[1:]),
            "remove one of these edges: a query cannot wait for its own output or its own end",
        )

    def _edge(self, upstream: str, uid: str) -> str:
        node = self._nodes[uid]
        through = next((one.exchange for one in node.reads if self._producers[one.exchange] == upstream), None)
        return "(after)" if through is None else f"(exchange '{through}')"


def _by_uid(nodes: tuple[QueryNode, ...]) -> dict[str, QueryNode]:
    found: dict[str, QueryNode] = {}
    for node in nodes:
        if node.uid in found:
            raise refused(f"two queries have the uid '{node.uid}'", f"query '{node.uid}'", "give each a uid of its own")
        found[node.uid] = node
        readers: set[str] = set()
        for reader in node.reads:
            if reader.uid in readers:
                raise refused(
                    f"two sources of query '{node.uid}' that read exchanges have the uid '{reader.uid}'",
                    f"query '{node.uid}', source '{reader.uid}'",
                    "give each a uid of its own",
                )
            readers.add(reader.uid)
    return found


def _producers(nodes: tuple[QueryNode, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in nodes:
        for exchange in node.writes:
            if exchange in found:
                who = f"queries '{found[exchange]}' and '{node.uid}' both write"
                raise refused(
                    f"query '{node.uid}' writes exchange '{exchange}' twice"
                    if found[exchange] == node.uid
                    else f"{who} exchange '{exchange}', which can have one producer only",
                    f"query '{node.uid}', exchange '{exchange}'",
                    "write to two exchanges, and read both",
                )
            found[exchange] = node.uid
    return found


def _listed(what: str, names: Mapping[str, object]) -> str:
    shown = ", ".join(f"'{name}'" for name in list(names)[:10])
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"its {what} are {shown}{more}" if names else f"it has no {what}"
