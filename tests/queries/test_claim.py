"""The claim of a target, without Spark: beside an older driver that still lives, and when something is planned."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ext.errors import FencedError, StateError
from spark_ext.model.commits import Claim
from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import UntilNow
from spark_ext.queries import operators
from spark_ext.queries.operator_hooks import OperatorHooks
from spark_ext.queries.records import FinishedSources
from spark_ext.queries.spec import OperatorSpec
from spark_ext.sinks.contract import SinkOptions
from spark_ext.sinks.runtime.position import Position, remember, remembered
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.session import registry
from tests.queries.fakes import QUERY_ID, Bench, position


class Target:
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
    return OperatorHooks(bench.spec, bench.context, 1, str(bench.query.checkpoint), FinishedSources(), **given)


def test_a_commit_during_the_claim_is_no_reason_to_refuse(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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


class Late:
    """A query that has committed an epoch in an earlier run, and its target."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, until: UntilNow | None, **given: object
    ) -> None:
        self.target = Target()
        monkeypatch.setattr(CLASSIC, "frame", lambda _: SimpleNamespace(schema=None))
        monkeypatch.setattr(operators, "sink", lambda *_: self.target)
        self.bench = Bench(folder, until=until, **given)  # type: ignore[arg-type]
        self.bench.spec = replace(self.bench.spec, sink=OperatorSpec("out", "fake", {}))
        self.bench.query._write("metadata", f'{{"id": "{QUERY_ID}"}}')
        self.bench.query.commit(position(at=1))

    def start(self, *, late: bool = True) -> "Late":
        self.bench.run = self.bench.made()
        self.bench.run.restore(None)
        self.bench.run.launcher.claim(late=late)
        self.bench.run.start()
        return self

    @property
    def claims(self) -> int:
        return len(self.target.claims)

    @property
    def registered(self) -> int | None:
        found = registry.lookup("in", self.bench.context.registry)
        assert found is not None
        return found.claims_after

    def ask(self) -> None:
        context = self.bench.context
        registry.write_private(context.registry / registry.note("in", "claim"), context.incarnation.start)
        self.bench.tick()


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Late:
    return Late(tmp_path, monkeypatch, until=UntilNow())


def test_it_is_claimed_when_a_planner_asks_for_it(late: Late) -> None:
    late.start().bench.tick()
    assert (late.claims, late.registered) == (0, 0)
    late.ask()
    assert (late.claims, late.registered) == (1, None)
    assert late.target.claims[0].planned == 0
    late.bench.tick()
    assert late.claims == 1


def test_an_epoch_that_is_to_be_repeated_is_claimed_at_the_start(late: Late) -> None:
    late.bench.query.plan(position(at=2))
    assert (late.start().claims, late.registered) == (1, None)


def test_an_older_drivers_epoch_is_claimed_before_its_repetition(late: Late) -> None:
    late.bench.run = late.bench.made()
    late.bench.run.restore(None)
    late.bench.run.launcher.claim(late=True)
    late.bench.query.plan(position(at=2))
    late.bench.run.start()
    assert (late.claims, late.registered) == (1, None)


@pytest.mark.parametrize("natives", [(), ("rate",)])
def test_others_are_claimed_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, natives: tuple[str]) -> None:
    """Runs without such an end, queries with one of Spark's own sources, and jobs that have changed."""
    until = UntilNow() if natives else None
    assert Late(tmp_path, monkeypatch, until=until, natives=natives).start().claims == 1
    assert Late(tmp_path / "changed", monkeypatch, until=UntilNow()).start(late=False).claims == 1


def test_a_target_that_refuses_the_claim_fails_the_query(late: Late) -> None:
    late.start()
    late.target.newest = 5
    late.ask()
    assert late.bench.run.state is State.FAILED and isinstance(late.bench.run.error, StateError)
    assert late.registered == 0, "nothing is planned"


def test_a_newer_start_fences_it_off(late: Late) -> None:
    def fenced() -> None:
        raise FencedError("a newer incarnation has the target")

    late.start()
    late.target._before = fenced
    with pytest.raises(FencedError):
        late.ask()
