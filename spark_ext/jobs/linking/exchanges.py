"""The exchanges of a running job: consumers are registered before a producer runs, and what all read is released."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from spark_ext.checkpoints.unaligned import Held, QueryLook, Taken, Unaligned, held_positions
from spark_ext.errors import RESET, CheckpointError, CommitError, FencedError, SparkExtError, StateError
from spark_ext.exchange import decisions
from spark_ext.exchange.consumers import Consumer, Fill
from spark_ext.exchange.kinds import parts
from spark_ext.exchange.positions import Front, rows_before
from spark_ext.exchange.view import ExchangeView
from spark_ext.failpoints import FailPoint, reach
from spark_ext.ledger.kinds import ExchangeEvent
from spark_ext.ledger.schema import ExchangeRow
from spark_ext.masking import logger
from spark_ext.model.checkpoint_plan import NotNow, Reason
from spark_ext.model.commits import FenceMark
from spark_ext.model.cut import release_bound
from spark_ext.queries.context import checkpoint_of
from spark_ext.queries.restarts import UNREADABLE, Outage
from spark_ext.queries.worker import Outcome, Worker
from spark_ext.spark.logs.spark_log import SparkLog

if TYPE_CHECKING:
    from spark_ext.exchange.contract import ExchangeLog, ExchangeMaster
    from spark_ext.exchange.descriptor import Descriptor
    from spark_ext.exchange.entries import LogState
    from spark_ext.jobs.execution_graph import ExecutionGraph
    from spark_ext.jobs.linking.inboxes import Inboxes
    from spark_ext.model.checkpoint_metadata import CheckpointMetadata
    from spark_ext.model.dag import JobGraph
    from spark_ext.queries.context import JobContext
    from spark_ext.queries.run import QueryRun

log = logger("spark_ext.job")
T = TypeVar("T")
RELEASE_EVERY: Final = 1.0  # pause between two looks at what can be released, s
AT_LEAST: Final = 20  # entries released together, unless all of it has been read: each release costs a few files


@dataclass(frozen=True)
class Link:
    """An exchange of the job and the sources that read it."""

    name: str
    kind: str
    path: str
    options: Mapping[str, str]  # of the kind
    readers: Mapping[str, str]  # query by the uid of its source; a query that is not built yet is ""
    # What the exchange is, given the job's id: for one whose producer is not built yet. None: not known.
    about: Callable[[str], Descriptor | None] = lambda job_id: None


def consumers_of(links: Sequence[Link], state: str) -> dict[str, tuple[Consumer, ...]]:
    """By exchange, the sources for which its producer waits: those whose queries are built."""
    return {
        link.name: tuple(
            Consumer(uid, checkpoint_of(state, query), query) for uid, query in link.readers.items() if query
        )
        for link in links
    }


class Exchanges:
    """Registers consumers and releases rows. Its methods are for the coordinator's thread; `tick` does not block.

    `restarted` has the lineage, by exchange, of producers that are not built yet and have written nothing in it.
    `follow` gets the views after each look at the exchanges, on the thread that has looked: it must not raise.
    """

    def __init__(
        self,
        context: JobContext,
        execution: ExecutionGraph,
        links: Sequence[Link],
        finished: Callable[[str], bool],
        restarted: Mapping[str, int],
        follow: Callable[[Mapping[str, ExchangeView]], None],
        inboxes: Inboxes,
    ) -> None:
        self.newest: Taken | None = None  # the newest consistent cut; None before the first, and without exchanges
        self._unaligned = Unaligned(execution.logged)
        self._views: dict[str, ExchangeView] = {}
        self._fills: dict[str, tuple[Mapping[str, str], Fill]] = {}  # each with the readers of its exchange
        self._links = {link.name: link for link in links}
        self._context, self._execution, self._inboxes = context, execution, inboxes
        self._finished, self._restarted, self._follow = finished, restarted, follow
        self._gated = bool(execution.waiting)
        self._worker = Worker(f"spark-ext-exchanges-{context.job}", context.wake.set)
        self._masters: dict[str, ExchangeMaster] = {}
        self._lock = threading.Lock()
        self._releasing = threading.Lock()  # during a release: the last one, at the job's end, is by another thread
        self._at = time.monotonic()
        self._sealed: set[str] = set()  # exchanges whose seal has been noted
        self.ended_readers: frozenset[str] = frozenset()  # of exchanges that were sealed before they were registered
        self._outage = Outage("the exchanges of the job", f"job '{context.job}'", context)

    @property
    def links(self) -> tuple[Link, ...]:
        """All exchanges."""
        return tuple(self._links.values())

    def read_by(self, run: QueryRun) -> dict[str, str]:
        """The exchange of each source of a query that reads one; "" for one that was sealed before."""
        named = {reader.uid: reader.exchange for reader in self._execution.graph[run.spec.uid].reads}
        # An exchange whose producer has finished, and has left the job, is not in the graph. Nor is one whose producer
        # is not built yet: nobody delivers a barrier to its readers.
        return dict.fromkeys(run.spec.fed & self.ended_readers, "") | named

    def add(self, links: Sequence[Link]) -> None:
        """A query has been built, and with it more is known; for the thread of any query's start."""
        with self._lock:
            found = dict(self._links)
            for link in links:
                known = found.get(link.name)
                readers = {**(known.readers if known else {}), **link.readers}
                found[link.name] = Link(link.name, link.kind, link.path, link.options, readers, link.about)
            # Replaced as a whole: others may be looking at it.
            self._links = found

    def register(self) -> None:
        """Register all consumers, and say which registered ones are not in the job any more."""
        for link in self._links.values():
            master, operator = self._master(link), f"exchange '{link.name}'"
            at, mark, job_id = time.time_ns() // 1_000_000, self._mark, self._context.job_id
            if master.describe() is not None:
                if link.name in self._restarted:
                    begun = partial(decisions.begin_anew_entry, lineage=self._restarted[link.name])
                    master.log.append(partial(begun, mark=mark, job_id=job_id, who=operator, at=at), self._writer)
                if master.log.look().sealed is not None:
                    with self._lock:
                        self.ended_readers |= set(link.readers)
            if self._is_over(link, master):
                continue
            adopted = partial(decisions.adopt_entry, mark=mark, job_id=job_id, who=operator, at=at)
            master.log.append(adopted, self._writer)
            state = master.log.look()
            for uid, query in link.readers.items():
                self._refuse_late(link, state, master.log, uid, query)
                registration = partial(decisions.register_entry, consumer=uid, query=query, at=at)
                if master.log.append(registration, self._writer) is not None:
                    self._note(link.name, ExchangeEvent.REGISTERED, query=query)
            for uid, query in state.consumers.items():
                if uid not in link.readers and not self._finished(query):
                    self._left(link, uid, query)

    def _is_over(self, link: Link, master: ExchangeMaster) -> bool:
        """Whether nothing has to be registered: all who read it have finished, or who writes it is not built yet."""
        if master.describe() is None:
            if self._gated:
                # Its readers may be there before the query that writes it.
                about = link.about(self._context.job_id)
                if about is not None:
                    master.register(about)
                return about is None
            raise StateError(
                f"exchange '{link.name}' is gone: the query that writes it has finished, and its folder {link.path} is "
                "not there any more",
                operator=f"job '{self._context.job}', exchange '{link.name}'",
                kept="nothing was started",
                do="restore the folder from a backup, or discard the history of the query that writes it, with "
                f"{RESET}",
            )
        state = master.log.look()
        readers = {*state.consumers.values(), *link.readers.values()}
        known = set(link.readers) <= set(state.consumers)
        return known and state.sealed is not None and all(map(self._finished, readers))

    def _refuse_late(self, link: Link, state: LogState, log: ExchangeLog, uid: str, query: str) -> None:
        if self._finished(query) or self._begun(query):
            return
        rows = state.released_rows
        what = f"the first {rows} rows of exchange '{link.name}' have been released: all queries that were known to "
        what += f"read it had done so, and source '{uid}' has read nothing yet"
        if not rows:
            there = (one for one in range(state.released, state.last + 1) if state.passes_over(one) is None)
            entries = map(log.entry, there)
            rows = sum(entry.row_count for entry in entries if entry is not None and uid in entry.read_by)
            what = f"source '{uid}' begins again, and had read {rows} rows of exchange '{link.name}' when that was "
            what += "rescaled: it would pass over them"
        if not rows:
            return
        raise StateError(
            what,
            operator=f"job '{self._context.job}', query '{query or '(not built yet)'}', source '{uid}'",
            kept="the exchange and all output are unchanged; nothing was started",
            do="discard the history of the query that writes it, which then writes it again, with "
            f"{RESET}; the exchange's setting keep decides how long rows are kept",
        )

    def _begun(self, query: str) -> bool:
        return bool(query) and SparkLog(checkpoint_of(self._context.state, query)).newest_offsets() is not None

    def _note(self, name: str, event: ExchangeEvent, *, query: str = "", position: int | None = None) -> None:
        incarnation = self._context.incarnation
        self._context.write_behind.put(
            ExchangeRow(
                exchange=name,
                event=event.value,
                query=query,
                lineage=incarnation.lineage,
                position=position,
                incarnation=incarnation.number,
                at=datetime.now(timezone.utc),
            )
        )

    def _left(self, link: Link, uid: str, query: str) -> None:
        what = f"source '{uid}' of query '{query}' reads exchange '{link.name}' and is no longer in the job"
        action = f"its rows are kept; job.forget('{link.name}', '{uid}') releases them"
        self._context.write_behind.incident(f"job '{self._context.job}'", "exchange", what, action)

    # -- release ------------------------------------------------------------------------------------------------------

    def tick(self, now: float, held: Callable[[], Held]) -> None:
        """Begin to release what is due; `held` are the offsets known now of a checkpoint which is not complete."""
        self._worker.deliver()
        if (
            (self._links or self._inboxes.links)
            and now - self._at >= RELEASE_EVERY
            and not self._worker.busy
            and self._outage.due(now)
        ):
            self._at = now
            # All as of this moment: a query that is built meanwhile is in none, and what a query delivers meanwhile is
            # not before these looks.
            found, graph, kept = self._execution.looks(), self._execution.graph, held()
            self._worker.do("a release of exchanges", lambda: self.release(found, graph, kept), self._released)

    def _released(self, outcome: Outcome[Taken | None]) -> None:
        if isinstance(outcome.error, (*UNREADABLE, CommitError)):
            lasting = self._outage.failed(outcome.error, time.monotonic())
            if lasting is not None:
                raise lasting
        elif isinstance(outcome.error, FencedError):
            raise outcome.error
        else:
            self.newest = outcome.result() or self.newest
            self._outage.over()

    def with_cut(
        self,
        what: str,
        looks: Mapping[str, QueryLook],
        action: Callable[[Taken, Mapping[str, ExchangeView]], T],
        then: Callable[[Outcome[T]], None],
    ) -> None:
        """Command: do something with the newest cut that looks allow, while nothing is released."""
        graph = self._execution.graph

        def work() -> T:
            with self._releasing:
                there, taken = self._cut(looks, graph)
                if isinstance(taken, NotNow):
                    raise CheckpointError(
                        f"no cut is consistent now: {taken}",
                        operator=f"job '{self._context.job}'",
                        kept="all committed epochs; the job continues",
                        do="try again later",
                    )
                return action(taken, there)

        self._worker.do(what, work, then)

    def _cut(self, looks: Mapping[str, QueryLook], graph: JobGraph) -> tuple[dict[str, ExchangeView], Taken | NotNow]:
        views = {link.name: self._view(link) for link in self._links.values()}
        there = {name: view for name, view in views.items() if view.look()}
        self._follow(there)
        missing = next((name for name in graph.exchanges if name not in there), None)
        if missing is not None:
            return there, NotNow(Reason.STARTING, graph.producer(missing))
        return there, self._unaligned.take(graph, looks, there)

    def hold(self, folder: str, metadata: CheckpointMetadata) -> None:
        """In an action of `with_cut`: a savepoint was taken, which needs what inboxes hold from its cut on."""
        self._inboxes.hold(folder, metadata)

    def release_late(self) -> None:
        """The job has ended: the last release."""
        self.release(self._execution.looks(), self._execution.graph, {})

    def release(self, looks: Mapping[str, QueryLook], graph: JobGraph, held: Held) -> Taken | None:
        """Release what no consumer needs: what lies before the newest consistent cut, and before what is held.

        A cut may be behind what consumers have committed, and a checkpoint may begin from there. Returns the cut; None
        if none is consistent now, or without exchanges.
        """
        with self._releasing:
            return self._release_all(looks, graph, held)

    def _release_all(self, looks: Mapping[str, QueryLook], graph: JobGraph, held: Held) -> Taken | None:
        there, taken = self._cut(looks, graph)
        self._measure(there, graph)
        self._inboxes.look()
        for name, view in there.items():
            if view.state.sealed is not None and name not in self._sealed:
                self._sealed.add(name)
                producer = graph.producer(name) if name in graph.exchanges else ""
                self._note(name, ExchangeEvent.SEALED, query=producer, position=view.state.sealed)
        if isinstance(taken, NotNow):
            log.debug("job '%s': no cut now, %s", self._context.job, taken)
            return None
        self._inboxes.release(taken, held)
        readers = {name: {**view.state.consumers, **self._links[name].readers} for name, view in there.items()}
        places = held_positions(held, readers, there)
        bounds = release_bound(graph, taken.cut, [places])
        for name, view in there.items():
            if name in bounds:
                self._release(view, bounds[name], {reader.uid for _, reader in graph.consumers(name)})
            else:
                # Its producer has left the job.
                mine = (place.released for (_, uid), place in places.items() if uid in readers[name])
                self._release(view, min(mine, default=None), set())
        return taken if self._links else None

    def _measure(self, there: Mapping[str, ExchangeView], graph: JobGraph) -> None:
        """Tell the producers how full their exchanges are, for display."""
        for name, view in there.items():
            run = self._execution.find(graph.producer(name)) if name in graph.exchanges else None
            if run is None:
                continue
            readers = self._links[name].readers
            if name not in self._fills or self._fills[name][0] != readers:
                waited_for = consumers_of([self._links[name]], self._context.state)[name]
                self._fills[name] = readers, Fill(view.master.log, waited_for, view.about.partitions)
            with suppress(SparkExtError, OSError):  # who needs it for more than a figure says what is wrong
                run.figures.filled(name, self._fills[name][1].level())

    def _release(self, view: ExchangeView, bound: int | None, known: set[str]) -> None:
        state, about, master = view.state, view.about, view.master
        below, over = self._bound(state, bound, known)
        below = self._kept(master, state, about.keep, below)
        if below <= state.released or (below - state.released < AT_LEAST and not over):
            return
        rows = rows_before(master.log.entry, state, Front(below, (0,) * about.partitions))
        at, mark = time.time_ns() // 1_000_000, self._mark
        reach(FailPoint.EXCHANGE_BEFORE_RELEASE)
        master.log.append(
            lambda current: decisions.release_entry(current, below, rows, mark, about.who, at), self._writer
        )
        self._note(about.name, ExchangeEvent.RELEASED, position=below)
        reach(FailPoint.EXCHANGE_RELEASED)
        master.delete_released()
        if over:
            # No epoch comes any more: what attempts of this incarnation have left is garbage as well.
            master.sweep(self._context.incarnation.number + 1)
        reach(FailPoint.EXCHANGE_DELETED)

    def _bound(self, state: LogState, bound: int | None, known: set[str]) -> tuple[int, bool]:
        """The number below which nobody needs anything, and whether the exchange has been read to its end by all."""
        if not state.consumers:
            return 0, False  # nobody reads it yet; who comes later reads all of it
        left = {uid: query for uid, query in state.consumers.items() if uid not in known}
        if any(not self._finished(query) for query in left.values()):
            return 0, False  # it is not built yet, or has left the job without a word
        end = state.last + 1
        over = state.sealed is not None and (bound is None or bound > state.sealed)
        return (end if over or bound is None else bound), over

    def _kept(self, master: ExchangeMaster, state: LogState, keep: int, below: int) -> int:
        """The bound, lowered by the time for which entries are kept at least."""
        if not keep:
            return below
        oldest = time.time_ns() // 1_000_000 - keep
        number = state.released
        while number < below:
            entry = master.log.entry(number)
            if entry is not None and entry.at > oldest:
                break
            number += 1
        return number

    @property
    def _mark(self) -> FenceMark:
        return FenceMark(self._context.incarnation.number, self._context.incarnation.start)

    @property
    def _writer(self) -> str:
        return str(self._context.incarnation.number)

    def _view(self, link: Link) -> ExchangeView:
        if link.name not in self._views:
            self._views[link.name] = ExchangeView(self._master(link))
        return self._views[link.name]

    def _master(self, link: Link) -> ExchangeMaster:
        with self._lock:
            if link.name not in self._masters:
                operator = f"job '{self._context.job}', exchange '{link.name}'"
                self._masters[link.name] = parts(link.kind, link.path, operator, link.options).master
            return self._masters[link.name]

    @property
    def busy(self) -> str:
        """What its worker is carrying out; "" when it has nothing to do."""
        return self._worker.busy

    def deliver(self) -> None:
        """Take in what commands have brought."""
        self._worker.deliver()

    def close(self) -> None:
        """The job has ended."""
        self._worker.close()
