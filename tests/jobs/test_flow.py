"""Which queries can be built at a start, without Spark."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_ext.errors import ConfigurationError
from spark_ext.jobs.composition import ChangeDeclarations, Composition, Gate
from spark_ext.jobs.starting.flow import check_followers, opened
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.memory import JobMemory
from spark_ext.model.configuration import Configuration
from spark_ext.model.dag import JobGraph, QueryNode, Reader
from spark_ext.model.lifecycle import FinalStep
from tests.ledger.rows import checkpoint, epoch
from tests.queries.fakes import Bench
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("finished", "renamed", "built"), [("new", False, True), ("old", True, True), ("", True, False)]
)
def test_a_query_behind_a_finished_and_renamed_one_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: str, renamed: bool, built: bool
) -> None:
    writer = LedgerWriter(Ledger(str(tmp_path)), start_incarnation(Ledger(str(tmp_path)), "j"))
    writer.append(epoch(1, query="old" if renamed else "new"))
    for status in ("COMPLETED", FinalStep.CLOSED.value) if finished else ():
        writer.append(replace(checkpoint(1), kind="final", query=finished, status=status))
    spark: Any = None
    composition = Composition(spark, "j", str(tmp_path))
    gates = [Gate("new", (), lambda: spark), Gate("behind", ("new",), lambda: spark)]
    composition.gates += gates
    composition.declared = ChangeDeclarations({"new": "old"} if renamed else {})
    monkeypatch.setattr(composition, "build", lambda gate, *_: gate.uid)
    memory = JobMemory.read(writer.ledger)
    specs, waiting = opened(composition, memory, writer.incarnation.number, Configuration())
    expected: list[Any] = ["new", "behind"] if built else ["new"]
    assert specs == expected and waiting == ([] if built else gates[1:])
    specs, _ = opened(composition, memory, writer.incarnation.number, Configuration(), holds=True)
    assert specs == expected[:1], "a drain would cut short what is built for the first time"
    writer.end("done")


@pytest.mark.parametrize(
    "behind",
    [QueryNode("behind", after=("q",)), QueryNode("behind", reads=(Reader("x", "in"),))],
    ids=["gate", "exchange"],
)
def test_nobody_may_wait_for_the_end_of_a_query_that_has_none(tmp_path: Path, behind: QueryNode) -> None:
    graph = JobGraph((QueryNode("q", writes=("x",)), behind))
    spec = Bench(tmp_path, natives=["rate"], sources=[], available_now=True).spec
    with refused(ConfigurationError, "query 'behind'", "waits for the end of query 'q'", "has no end"):
        check_followers([spec], graph, "j")
    check_followers([replace(spec, available_now=False)], graph, "j")
    check_followers([spec], JobGraph((QueryNode("q", writes=("x",)),)), "j")
