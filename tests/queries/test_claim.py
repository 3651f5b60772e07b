"""The claim of a target beside an older driver that still lives, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ext.errors import StateError
from spark_ext.model.commits import Claim
from spark_ext.queries import operators
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.spec import OperatorSpec
from spark_ext.sinks.contract import SinkOptions
from spark_ext.sinks.runtime.position import Position, remember, remembered
from spark_ext.spark.backend.classic import CLASSIC
from tests.queries.fakes import QUERY_ID, Bench


class Target:
    """A sink whose target knows its newest epoch."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.options = SinkOptions(uid="out")
        self.claims: list[Claim] = []
        self.newest = -1
        self._before = before

    def validate(self, schema: object) -> None:
        pass

    def claim(self, claim: Claim) -> None:
        self._before()
        self.claims.append(claim)
        claim.check_state({QUERY_ID: self.newest} if self.newest >= 0 else {}, None, "sink 'out'")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    bench.spec = replace(bench.spec, sink=OperatorSpec("out", "fake", {}))
    bench.query.start()
    monkeypatch.setattr(CLASSIC, "frame", lambda _: SimpleNamespace(schema=None))
    return bench


def hooks(bench: Bench, target: Target, monkeypatch: pytest.MonkeyPatch, **given: Any) -> OperatorHooks:
    monkeypatch.setattr(operators, "sink", lambda *_: target)
    return OperatorHooks(bench.spec, bench.context, 1, str(bench.query.checkpoint), **given)


def test_an_epoch_that_an_older_driver_commits_during_the_claim_is_no_reason_to_refuse(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the target seemed to be ahead of the state, which had been read a moment earlier."""
    left = [1, 2]

    def commit() -> None:
        if left:
            target.newest = bench.query.commit({"logOffset": left.pop(0)})

    target = Target(before=commit)
    bench.query.commit({"logOffset": 0})
    hooks(bench, target, monkeypatch).claim()
    assert [claim.planned for claim in target.claims] == [0, 1, 2]


def test_a_target_that_is_ahead_of_a_state_at_rest_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target()
    target.newest = 7
    bench.query.commit({"logOffset": 0})
    with pytest.raises(StateError, match="ahead of this state: it holds epoch 7"):
        hooks(bench, target, monkeypatch).claim()
    assert len(target.claims) == 1


def test_a_new_target_is_not_compared_with_the_former_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known of the former one is forgotten when the new one is claimed, and not before."""
    checkpoint = str(bench.query.checkpoint)
    bench.query.commit({"logOffset": 0})
    remember(checkpoint, Position("out", 1, QUERY_ID, 0), start=1)

    class Refusing(Target):
        def claim(self, claim: Claim) -> None:
            raise StateError("no")

    with pytest.raises(StateError, match="no"):
        hooks(bench, Refusing(), monkeypatch, elsewhere=True).claim()
    assert remembered(checkpoint) is not None
    with pytest.raises(StateError, match="dropped"):
        hooks(bench, Target(), monkeypatch).claim()
    moved = Target()
    hooks(bench, moved, monkeypatch, elsewhere=True).claim()
    assert moved.claims[0].previous is None and remembered(checkpoint) is None
