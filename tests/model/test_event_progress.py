"""What has become of an event, from offsets alone."""

from dataclasses import replace

import pytest

from spark_ext.model.configuration import SETTINGS
from spark_ext.model.control import JOB, Delivery, Event, channel, query, source
from spark_ext.model.event_progress import Progress, QueryView, Rebuilt, Standing, Step
from spark_ext.model.offsets import SourceOffset

ABLE = QueryView("q", frozenset({"a", "b"}), Standing.ABLE)
OTHER = QueryView("r", frozenset({"c"}), Standing.ABLE)


def event(sequence: int = 7, target: object = JOB, kind: str = "set_config") -> Event:
    return Event(sequence, f"e{sequence}", kind, target)  # type: ignore[arg-type]


def offsets(**controls: int) -> dict[str, SourceOffset]:
    return {uid: SourceOffset(uid, control=control) for uid, control in controls.items()}


def view(of: QueryView, committed: int = -1, standing: Standing = Standing.ABLE, ended: str = "") -> QueryView:
    return QueryView(of.uid, of.sources, standing, committed, frozenset(ended))


def test_a_querys_greatest_sequence_counts_at_its_first_epoch() -> None:
    one = Progress(event())
    assert one.seen(ABLE, 3, offsets(a=6, b=2)) is one
    two = one.seen(ABLE, 4, offsets(a=6, b=8))
    assert two.applied == {"q": 4} and two.seen(ABLE, 5, offsets(a=9, b=9)).applied == {"q": 4}
    assert two.first_step("q") == Step("applied", "q", 4)


def test_an_event_for_a_source_is_applied_when_the_source_has_it() -> None:
    for target in (source("a"), channel("a", "0")):
        one = Progress(event(target=target))
        assert one.seen(ABLE, 1, offsets(a=6, b=9)) is one
        assert one.seen(ABLE, 2, offsets(a=7, b=9)).applied == {"q": 2}
        assert one.seen(OTHER, 2, offsets(c=9)) is one


def test_it_is_acknowledged_once_all_that_can_have_committed() -> None:
    one = Progress(event()).seen(ABLE, 4, offsets(a=7))
    assert one.last_step([view(ABLE, 9), view(OTHER, 9)]) is None
    two = one.seen(OTHER, 2, offsets(c=7))
    assert two.last_step([view(ABLE, 3), view(OTHER, 2)]) is None
    assert two.last_step([view(ABLE, 4), view(OTHER, 2)]) == Step("acknowledged")
    done = one.last_step([view(ABLE, 4), view(OTHER, 1, Standing.FINISHED)])
    assert done == Step("acknowledged", reason="query 'r' has finished")
    native = QueryView("n", frozenset(), Standing.BLIND)
    done = one.last_step([view(ABLE, 4), native])
    assert done is not None and done.status == "acknowledged" and "with_control" in done.reason


def test_what_nobody_can_ever_obey_is_rejected_with_the_reason() -> None:
    for target, seen, reason in (
        (JOB, view(ABLE, 4, Standing.FINISHED), "query 'q' has finished"),
        (source("a"), view(ABLE, 4, ended="a"), "query 'q' has read source 'a' to its end"),
        (query("gone"), ABLE, "the job has nothing that it is addressed to"),
    ):
        assert Progress(event(target=target)).last_step([seen]) == Step("rejected", reason=reason)
    for standing in (Standing.ABLE, Standing.STOPPED):
        assert Progress(event()).last_step([view(ABLE, 4, standing)]) is None


@pytest.mark.parametrize("status", ["rejected", "expired", "failed"])
def test_what_a_planner_has_said_is_the_end(status: str) -> None:
    one = Progress(event()).with_outcome("q", {"status": status, "reason": "no"}).seen(ABLE, 4, offsets(a=7))
    assert one.first_step("q") == Step(status, "q", 4, "no")
    assert one.last_step([view(ABLE, 3)]) is None
    assert one.last_step([view(ABLE, 4)]) == Step(status, reason="no")
    both = one.seen(OTHER, 1, offsets(c=7)).last_step([view(ABLE, 4), view(OTHER, 1)])
    assert both == Step("acknowledged", reason="no"), "one of the two has obeyed it"


def test_a_result_is_kept() -> None:
    said = {"status": "applied", "result": {"skipped": 5}}
    one = Progress(event(target=channel("a", "0"), kind="seek")).with_outcome("q", said).seen(ABLE, 4, offsets(a=7))
    assert one.first_step("q").result == {"skipped": 5}
    assert one.last_step([view(ABLE, 4)]) == Step("acknowledged", result={"skipped": 5})


def test_a_request_obeyed_once_does_not_concern_a_later_history() -> None:
    broadcast = Event(7, "e7", "broadcast", JOB, {"type": "t"}, lineage=1, incarnation=2)
    for now in (replace(ABLE, lineage=2), replace(ABLE, begun=3)):
        reason = "query 'q' has been restored, reset or added since"
        assert Progress(broadcast).last_step([now]) == Step("failed", reason=reason)
        assert Progress(replace(broadcast, kind="pause", value=None)).last_step([now]) is None, "what stands is obeyed"


BUILT = QueryView("built", frozenset(), Standing.BLIND, keys=(SETTINGS, "key"), passed=3, since=0)
"""A query of Spark's own sources, as a function of the configuration."""
WRITER = QueryView("writer", frozenset({"a"}), Standing.ABLE)


def progress(key: str = "key", delivery: Delivery = Delivery.IMMEDIATE) -> Progress:
    return Progress(Event(7, "e7", "set_config", JOB, {"key": key, "value": 1}, delivery))


def test_it_is_applied_with_the_first_epoch_after_the_restart() -> None:
    one = progress()
    assert one.last_step([BUILT]) is None and one.restarted(BUILT) is one
    passed = replace(BUILT, passed=7, since=4, committed=3)
    two = replace(one, rebuilt={"built": Rebuilt(4, 800)}).restarted(passed)
    assert two.first_step("built") == Step("applied", "built", 4)
    assert two.restarted(passed) is two
    last = two.last_step([passed])
    note = "query 'built' was restarted before epoch 4, in 800 ms"
    assert last == Step("acknowledged", reason=note, result={"restarted": ["built"], "took_ms": 800})
    assert Rebuilt(4, 800, 3).note("q").endswith("; epoch 3 was interrupted, and completed before")
    assert progress().restarted(replace(BUILT, passed=7, since=-1)).applied == {}
    assert progress().restarted(replace(BUILT, passed=9, since=2)).last_step([BUILT]) == Step("acknowledged")


def test_an_aligned_key_is_in_force_when_it_is_released() -> None:
    passed = replace(BUILT, passed=9, since=2)
    one = progress(delivery=Delivery.ALIGNED)
    assert one.restarted(passed) is one
    assert replace(one, rebuilt={"built": Rebuilt(2, 1)}).restarted(passed).applied == {"built": 2}


def test_keys_that_no_function_can_read_are_rejected() -> None:
    last = progress("other").last_step([BUILT])
    assert last is not None and last.status == "rejected" and "its function has not read it" in last.reason
    seen = progress("spark.sql.ansi.enabled").seen(WRITER, 3, {"a": SourceOffset("a", control=9)})
    assert seen.applied == {}
    last = seen.last_step([WRITER])
    assert last is not None and last.status == "rejected" and "was added as a writer" in last.reason
    both = seen.restarted(replace(BUILT, passed=7, since=1)).last_step([WRITER, BUILT])
    assert both is not None and both.status == "acknowledged" and "was added as a writer" in both.reason
