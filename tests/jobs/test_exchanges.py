"""Releases of exchanges of a running job: what an aligned checkpoint under way still needs is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.checkpoints.unaligned import QueryLook, Taken
from spark_ext.errors import CheckpointError
from spark_ext.jobs.exchanges import Exchanges, Link
from spark_ext.jobs.savepoints import Cutting, Member, describe
from spark_ext.ledger import Incarnation, Ledger
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.queries.spec import OperatorSpec
from tests.queries.fakes import Bench
from tests.support.exchanges import Producer, logged

GRAPH = JobGraph((QueryNode("a", (), ("x",)), QueryNode("c", (Reader("x", "x-in"),))))

LEFT = JobGraph((QueryNode("c"),))
"""Once the query that wrote the exchange has left the job."""


class Job:
    """The query `c` has read 40 epochs of `a`, one entry each."""

    def __init__(self, folder: Path, *, sealed: bool = False, graph: JobGraph = GRAPH) -> None:
        self.producer = Producer(folder)
        context = replace(Bench(folder).context, incarnation=Incarnation("lab", "job-id", 1, 1, start=7))
        link = Link("x", "arrow", str(folder / "x"), {"x-in": "c"})
        self.graph, self.over = graph, sealed
        self.exchanges = Exchanges([link], context, lambda _: self.over, gated=False, graph=graph, older=lambda _: [])
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
def test_what_lies_behind_a_delivered_cut_is_kept_until_the_checkpoint_is_over(
    tmp_path: Path, sealed: bool, graph: JobGraph
) -> None:
    """However far the consumer has read since, and also when it has finished."""
    job = Job(tmp_path, sealed=sealed, graph=graph)
    _, delivered = job.consumer(18).epochs[0]
    job.exchanges.release(job.looks(39), graph, {"c": delivered})
    assert job.released == job.ends[18]
    job.exchanges.release(job.looks(39), graph)
    assert job.released >= job.ends[39]


def test_a_query_that_has_no_epoch_at_its_cut_needs_all(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.exchanges.release(job.looks(39), GRAPH, {"c": None})
    assert job.released == 0


def test_a_cut_of_which_something_has_been_released_is_not_recorded(tmp_path: Path) -> None:
    """Neither as a savepoint nor as a retained checkpoint: both are described before anything is kept."""
    job = Job(tmp_path)

    def cutting(epoch: int) -> Cutting:
        looks = {"a": job.producer.look(*range(40)), "c": job.consumer(epoch)}
        views, taken = job.exchanges._cut(looks, GRAPH)
        assert isinstance(taken, Taken)
        return Cutting(
            "lab",
            "job-id",
            str(tmp_path),
            Incarnation("lab", "job-id", 1, 1, start=7),
            1,
            "periodic",
            CheckpointMode.ALIGNED,
            taken,
            GRAPH,
            members,
            job.exchanges.links,
            views,
        )

    spec = replace(Bench(tmp_path).spec, uid="a", sources=(), sink=OperatorSpec("x", "exchange_2pc", {}))
    members = [Member(spec, 1, str(tmp_path), "query-id", False)]
    ledger = Ledger(str(tmp_path / "state"))
    job.exchanges.release(job.looks(30), GRAPH)
    assert job.released == job.ends[30]
    with pytest.raises(CheckpointError, match=f"entries {job.ends[24]} to {job.ends[30] - 1}, which source 'x-in'"):
        describe(cutting(24), ledger)
    assert describe(cutting(30), ledger).metadata.exchanges["x"].first == job.ends[30]
    # A source that the query does not have any more has no place in its offsets, and needs nothing more than there is.
    job.producer.register("gone-in", "c")
    assert describe(cutting(30), ledger).metadata.exchanges["x"].first == job.ends[30]
