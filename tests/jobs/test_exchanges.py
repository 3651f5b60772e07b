"""Releases of exchanges of a running job: what an aligned checkpoint under way still needs is kept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ext.checkpoints.unaligned import QueryLook, Taken
from spark_ext.errors import CheckpointError
from spark_ext.exchange import decisions
from spark_ext.exchange.positions import Front, advance
from spark_ext.jobs.checkpointing.savepoints import Cutting, Member, describe
from spark_ext.jobs.composition import Composition, Gate
from spark_ext.jobs.linking.exchanges import Exchanges, Link
from spark_ext.jobs.linking.inboxes import Inboxes
from spark_ext.jobs.starting import changing
from spark_ext.jobs.starting.flow import restarted_exchanges
from spark_ext.ledger import Incarnation, Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.memory import JobMemory
from spark_ext.model.commits import FenceMark
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.queries.spec import OperatorSpec, QuerySpec
from tests.ledger.rows import definition
from tests.ledger.rows import epoch as epoch_row
from tests.queries.fakes import Bench
from tests.support.coordinated import execution_of
from tests.support.exchanges import Producer, logged

GRAPH = JobGraph((QueryNode("a", (), ("x",)), QueryNode("c", (Reader("x", "x-in"),))))

LEFT = JobGraph((QueryNode("c"),))  # once the query that wrote the exchange has left the job


class Job:
    """The query `c` has read 40 epochs of `a`, one entry each."""

    def __init__(self, folder: Path, *, sealed: bool = False, graph: JobGraph = GRAPH) -> None:
        self.producer = Producer(folder)
        context = replace(Bench(folder).context, incarnation=Incarnation("lab", "job-id", 1, 1, start=7))
        link = Link("x", "arrow", str(folder / "x"), {}, {"x-in": "c"})
        self.graph, self.over = graph, sealed
        execution = execution_of((), graph)
        inboxes = Inboxes(context, execution, ())
        self.exchanges = Exchanges(context, execution, [link], lambda _: self.over, {}, lambda _: None, inboxes)
        self.producer.register("x-in", "c")
        self.ends = [self.producer.write(number, 1, 1) + 1 for number in range(40)]
        if sealed:
            self.producer.seal(39)

    def consumer(self, epoch: int) -> QueryLook:
        """It has read one entry in each epoch; with the seal it has finished."""
        at = [self.ends[epoch], 0]
        one = logged(epoch, ended=True) if self.over and epoch == 39 else logged(epoch, at, at)
        return QueryLook("", ((epoch, one),), self.over and epoch == 39)

    def looks(self, consumer: int) -> dict[str, QueryLook]:
        found = {"a": self.producer.look(*range(40), finished=self.over), "c": self.consumer(consumer)}
        return {node.uid: found[node.uid] for node in self.graph}

    @property
    def released(self) -> int:
        return self.producer.master.log.look().released


@pytest.mark.parametrize(("sealed", "graph"), [(False, GRAPH), (True, GRAPH), (True, LEFT)])
def test_a_delivered_cut_is_kept_until_the_checkpoint_is_over(tmp_path: Path, sealed: bool, graph: JobGraph) -> None:
    """However far the consumer has read since, and also when it has finished."""
    job = Job(tmp_path, sealed=sealed, graph=graph)
    _, delivered = job.consumer(18).epochs[0]
    job.exchanges.release(job.looks(39), graph, {"c": delivered})
    assert job.released == job.ends[18]
    job.exchanges.release(job.looks(39), graph, {})
    assert job.released >= job.ends[39]


def test_a_query_that_has_no_epoch_at_its_cut_needs_all(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.exchanges.release(job.looks(39), GRAPH, {"c": None})
    assert job.released == 0


def test_a_cut_that_was_released_in_part_is_not_recorded(tmp_path: Path) -> None:
    """Neither as a savepoint nor as a retained checkpoint: both are described before anything is kept."""
    job = Job(tmp_path)

    def cutting(epoch: int) -> Cutting:
        views, taken = job.exchanges._cut({"a": job.producer.look(*range(40)), "c": job.consumer(epoch)}, GRAPH)
        assert isinstance(taken, Taken)
        return Cutting(
            "lab", Incarnation("lab", "job-id", 1, 1, start=7), 1, "periodic", CheckpointMode.ALIGNED, taken, GRAPH,
            members, job.exchanges.links, views,
        )  # fmt: skip

    spec = replace(Bench(tmp_path).spec, uid="a", sources=(), sink=OperatorSpec("x", "exchange_2pc", {}))
    members = [Member(spec, 1, str(tmp_path), "query-id", False, frozenset())]
    ledger = Ledger(str(tmp_path / "state"))
    job.exchanges.release(job.looks(30), GRAPH, {})
    assert job.released == job.ends[30]
    with pytest.raises(CheckpointError, match=f"entries {job.ends[24]} to {job.ends[30] - 1}, which source 'x-in'"):
        describe(cutting(24), ledger)
    assert describe(cutting(30), ledger).metadata.exchanges["x"].first == job.ends[30]
    # A source that the query does not have any more has no place in its offsets, and needs nothing more than there is.
    job.producer.register("gone-in", "c")
    assert describe(cutting(30), ledger).metadata.exchanges["x"].first == job.ends[30]


@pytest.mark.parametrize("released", [False, True])
def test_a_reset_abandons_gated_output_before_readers_start(tmp_path: Path, released: bool) -> None:
    """Its next claim would be too late: until then its reader reads discarded rows, or misses released ones."""
    ledger, state = Ledger(str(tmp_path)), str(tmp_path)
    writer = LedgerWriter(ledger, start_incarnation(ledger, "lab"))
    sink = {"uid": "x", "role": "sink", "format": "exchange_2pc", "identity": {"path": "x"}, "options": {}}
    writer.append([definition("p", operators=[sink]), *(epoch_row(1, query=name) for name in ("a", "p", "c"))])
    job_id = writer.incarnation.job_id
    producer = Producer(tmp_path / "exchanges", job_id)
    producer.register("x-in", "c")
    end = producer.write(0, 2, 2)
    producer.seal(0)
    if released:
        mark = FenceMark(1, 7)
        producer.master.log.append(lambda log: decisions.release_entry(log, end + 1, 4, mark, "x", 0), "1")
    writer.end("done")
    gate = Gate("p", ("a",), lambda: None)
    assert restarted_exchanges([gate], JobMemory.read(ledger)) == {}
    read = OperatorSpec("x-in", "exchange", {"uid": "x-in", "path": f"{state}/exchanges/x"})
    write = OperatorSpec("x", "exchange_2pc", {"uid": "x", "path": f"{state}/exchanges/x"})
    composition = Composition(None, "lab", state)  # type: ignore[arg-type]
    composition.specs += [query("a"), query("c", read), query("p", sink=write)]
    composition.gates.append(gate)
    changing.reset(composition, ledger, "a", "once more", cascade=True)

    lineage = JobMemory.read(ledger).lineage("p")
    log = producer.master.log
    for number in (3, 4):  # the second time there is nothing left to abandon
        incarnation = Incarnation("lab", job_id, number, 4, start=7)
        context = replace(Bench(tmp_path / "bench").context, incarnation=incarnation, job_id=job_id, state=state)
        link = Link("x", "arrow", str(tmp_path / "exchanges" / "x"), {}, {"x-in": "c"})
        graph = JobGraph((QueryNode("a"), QueryNode("c"), QueryNode("p", after=("a",))))
        execution = execution_of((), graph, {"p": ("a",)})
        restarted = restarted_exchanges([gate], JobMemory.read(ledger))
        inboxes = Inboxes(context, execution, ())
        exchanges = Exchanges(context, execution, [link], lambda _: False, restarted, lambda views: None, inboxes)
        exchanges.register()
        assert not exchanges.ended_readers
        begin = Front(log.look().passes_over(0) or 0, (0, 0))
        assert not advance(log.look(), log.entry, begin, None, None).moved, "nothing of the discarded history is read"
    again = Producer(tmp_path / "exchanges", job_id, incarnation=4, lineage=lineage)
    again.write(0, 3, 3)
    exchanges.register()  # as for every query that is built later
    again.seal(0)
    step = advance(log.look(), log.entry, begin, None, None)
    assert (step.rows, step.sealed) == (6, True)


def query(uid: str, *sources: OperatorSpec, sink: OperatorSpec | None = None) -> QuerySpec:
    writer: Any = None
    return QuerySpec(uid, writer, sources, (), (), sink, "noop", False)


def test_which_sources_read_what_was_sealed_before(tmp_path: Path) -> None:
    job = Job(tmp_path / "over", sealed=True)
    job.exchanges.register()
    assert job.exchanges.ended_readers == {"x-in"}
    job = Job(tmp_path / "open")
    job.exchanges.register()
    assert not job.exchanges.ended_readers
