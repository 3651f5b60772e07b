"""A run that ends with what is there claims its target when something is to be planned, and not before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_ext.errors import FencedError, StateError
from spark_ext.model.lifecycle import State
from spark_ext.model.until import UntilNow
from spark_ext.queries import operators
from spark_ext.queries.spec import OperatorSpec
from spark_ext.spark.backend.classic import CLASSIC
from spark_ext.spark.session import registry
from tests.queries.fakes import QUERY_ID, Bench, position
from tests.queries.test_claim import Target


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

    def start(self, *, late: bool = True) -> Late:
        self.bench.run = self.bench.made()
        self.bench.run.restore(None)
        self.bench.run.claim(late=late)
        self.bench.run.start()
        return self

    @property
    def claims(self) -> int:
        return len(self.target.claims)

    @property
    def registered(self) -> int | None:
        """What its planner finds."""
        found = registry.lookup("in", self.bench.context.registry)
        assert found is not None
        return found.claims_after

    def ask(self) -> None:
        """Its planner has something to plan."""
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


def test_an_epoch_that_an_older_driver_plans_meanwhile_is_claimed_before_it_is_repeated(late: Late) -> None:
    late.bench.run = late.bench.made()
    late.bench.run.restore(None)
    late.bench.run.claim(late=True)
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
