"""A query in a run that ends with what is there: what its Spark query's end means, and whom it waits for."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.model.lifecycle import State
from spark_ext.model.restarts import UntilNow, Upstream
from spark_ext.queries.catching_up import AT_REST
from spark_ext.queries.records import registrations
from spark_ext.queries.spark_query import has_read_all
from spark_ext.queries.spec import OperatorSpec
from spark_ext.spark.backend.contract import OwnEnd
from spark_ext.spark.logs import watermarks
from spark_ext.spark.session import registry
from spark_ext.spark.watching.query_events import Hint
from tests.queries.fakes import QUERY_ID, TASK_LOST, Bench, FakeQuery, position
from tests.sources.memory import registration

NOTHING_LEFT = OwnEnd(found_nothing=True, one_epoch=False)
STOPPED = OwnEnd(found_nothing=False, one_epoch=False)
ONE_EPOCH = OwnEnd(found_nothing=False, one_epoch=True)


@pytest.fixture(params=[{"until": UntilNow()}, {"available_now": True}], ids=["until now", "available now"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    # Its operators are made up, and have no hooks.
    return Bench.native(tmp_path, **request.param)


def ended(bench: Bench, own: OwnEnd | None) -> State:
    bench.query.end(own=own)
    bench.tick(times=2)
    return bench.run.state


@pytest.mark.parametrize("epochs", [0, 3])
def test_what_was_there_is_read_and_the_query_is_suspended(bench: Bench, epochs: int) -> None:
    for epoch in range(epochs):
        bench.query.commit({"offset": epoch})
    assert ended(bench, NOTHING_LEFT) is State.SUSPENDED
    assert (bench.query.starts, bench.run.committed, bench.states()[-1]) == (1, epochs - 1, "SUSPENDED")


@pytest.mark.parametrize("own", [STOPPED, None], ids=["in between", "with Spark itself"])
def test_a_stop_from_outside_is_not_the_end_of_the_input(bench: Bench, own: OwnEnd | None) -> None:
    bench.query.commit({"offset": 1})
    assert ended(bench, own) is State.CANCELED
    assert "outside" in bench.run.reason


def test_an_epoch_that_was_not_committed_is_no_end(bench: Bench) -> None:
    bench.query.plan({"offset": 1})
    assert ended(bench, NOTHING_LEFT) is State.CANCELED and bench.query.starts == 1


def test_a_source_of_one_epoch_at_a_time_has_given_everything(bench: Bench) -> None:
    bench.query.commit({"offset": 1})
    assert ended(bench, ONE_EPOCH) is State.SUSPENDED


def test_the_one_epoch_may_be_one_that_an_earlier_run_planned(tmp_path: Path) -> None:
    bench = Bench(tmp_path, natives=["rate"], sources=[], until=UntilNow())
    bench.query.plan({"offset": 1})
    bench.started()
    bench.query.commit_planned()
    assert ended(bench, ONE_EPOCH) is State.RUNNING
    assert bench.query.starts == 2
    bench.query.commit({"offset": 2})
    assert ended(bench, ONE_EPOCH) is State.SUSPENDED


def test_a_failure_leads_to_a_restart_and_the_run_goes_on(bench: Bench) -> None:
    bench.query.commit({"offset": 1})
    bench.ends(TASK_LOST)
    assert bench.state() is State.RESTARTING
    bench.tick(1.0)
    assert ended(bench, NOTHING_LEFT) is State.SUSPENDED


def test_a_query_with_all_its_input_finishes_without_suspension(tmp_path: Path) -> None:
    bench = Bench(tmp_path, until=UntilNow()).started()
    bench.query.commit(position(finished=1, ended=True))
    assert ended(bench, NOTHING_LEFT) is State.FINISHING


def following(folder: Path, unread: str = "") -> tuple[Bench, list[Upstream]]:
    feeding = [Upstream(ended=False)]
    return Bench.native(folder, until=UntilNow(lambda uid: feeding[-1], lambda uid: unread)), feeding


def test_a_query_follows_those_that_feed_it_until_they_end(tmp_path: Path) -> None:
    bench, feeding = following(tmp_path)
    assert ended(bench, NOTHING_LEFT) is State.RUNNING
    bench.tick(AT_REST)
    assert bench.query.starts == 1, "there is nothing new"
    feeding.append(Upstream(ended=False, epochs=1))
    bench.tick()
    assert bench.query.starts == 2
    bench.query.commit({"offset": 1})
    # They end while it runs: what they committed last may have come after its last look.
    feeding.append(Upstream(ended=True, epochs=2))
    assert ended(bench, NOTHING_LEFT) is State.RUNNING
    bench.tick(AT_REST)
    assert bench.query.starts == 3
    assert ended(bench, NOTHING_LEFT) is State.SUSPENDED


def test_a_query_that_waits_for_its_feeders_can_be_stopped(tmp_path: Path) -> None:
    bench, _ = following(tmp_path)
    assert ended(bench, NOTHING_LEFT) is State.RUNNING
    bench.run.request_stop()
    bench.tick()
    assert bench.state() is State.CANCELED


def test_a_query_of_which_something_is_paused_has_not_caught_up(tmp_path: Path) -> None:
    bench = Bench.native(tmp_path, until=UntilNow(unread=lambda uid: f"{uid} is paused"))
    assert ended(bench, NOTHING_LEFT) is State.CANCELED
    assert bench.run.reason == "q is paused"


def test_a_paused_query_does_not_wait_for_those_that_feed_it(tmp_path: Path) -> None:
    """They may wait for it, at an exchange that is full."""
    bench, _ = following(tmp_path, "paused")
    assert ended(bench, NOTHING_LEFT) is State.RUNNING
    bench.run.take_snapshots(paused=True)
    bench.tick(AT_REST)
    bench.tick()
    assert (bench.state(), bench.query.starts) == (State.CANCELED, 1)


def test_event_times_of_a_run_are_noted_before_the_restart(tmp_path: Path) -> None:
    """Spark forgets them, also where a query follows others within one run of the job."""
    feeding = [Upstream(ended=False)]
    bench = Bench(tmp_path, natives=["rate"], sources=[], until=UntilNow(lambda uid: feeding[-1]))
    bench.spec = replace(bench.spec, ends=(OperatorSpec("a~end", "end_of_input", {"watches": "a"}),))
    bench.run = bench.made()
    bench.started()
    bench.query.commit({"offset": 1})
    bench.query.hints.append(Hint("progress", QUERY_ID, "run", 0, event_times={"a~end": 50}))
    assert ended(bench, NOTHING_LEFT) is State.RUNNING
    assert watermarks.newest(bench.run.checkpoint, 0) == {}
    feeding.append(Upstream(ended=False, epochs=1))
    bench.tick(AT_REST)
    assert (bench.query.starts, watermarks.newest(bench.run.checkpoint, 0)) == (2, {"a~end": 50})


@pytest.mark.parametrize("until", [None, UntilNow()])
def test_a_pause_ends_a_run_until_now_and_no_query(tmp_path: Path, until: UntilNow | None) -> None:
    """One that has a trigger of its own waits for the pause: nothing would say that it has not read everything."""
    bench = Bench(tmp_path, until=until, available_now=until is None)
    (found,) = registrations(bench.spec, bench.context, "c", 0, 0, (), None)
    assert found.available_now and found.until_now is (until is not None)


def test_a_log_that_cannot_be_read_now_is_no_end(tmp_path: Path) -> None:
    """The query runs on: before Spark 4.2 the job itself looks whether it has read everything."""
    place, checkpoint = tmp_path / "registry", tmp_path / "checkpoint"
    registry.publish([registration()], place)
    at = position("s", at=1).to_json()
    registry.write_private(place / registry.note("s", "end"), {"start": 7, "at": at})
    FakeQuery(checkpoint).commit(at)
    assert has_read_all(["s"], place, 7, str(checkpoint))
    assert not has_read_all(["s", "t"], place, 7, str(checkpoint))
    assert not has_read_all(["s"], place, 8, str(checkpoint)), "the query of an earlier start has noted it"
    (checkpoint / "commits").rename(tmp_path / "commits")
    (checkpoint / "commits").write_text("a folder that does not answer")
    assert not has_read_all(["s"], place, 7, str(checkpoint))
