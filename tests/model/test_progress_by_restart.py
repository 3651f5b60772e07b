"""What has become of a key that a query obeys by a restart."""

from __future__ import annotations

from dataclasses import replace

from spark_ext.model.control import JOB, Delivery, Event
from spark_ext.model.event_progress import Progress, QueryView, Rebuilt, Standing, Step
from spark_ext.model.holds import SETTINGS
from spark_ext.model.offsets import SourceOffset

BUILT = QueryView("built", frozenset(), Standing.BLIND, keys=(SETTINGS, "key"), passed=3, since=0)
"""A query of Spark's own sources, as a function of the configuration."""
WRITER = QueryView("writer", frozenset({"a"}), Standing.ABLE)


def progress(key: str = "key", delivery: Delivery = Delivery.IMMEDIATE) -> Progress:
    return Progress(Event(7, "e7", "set_config", JOB, {"key": key, "value": 1}, delivery))


def test_it_is_applied_with_the_first_epoch_after_the_restart_and_needs_none() -> None:
    one = progress()
    assert one.last_step([BUILT]) is None and one.restarted(BUILT) is one
    passed = replace(BUILT, passed=7, since=4, committed=3)
    two = replace(one, rebuilt={"built": Rebuilt(4, 800)}).restarted(passed)
    assert two.first_step("built") == Step("applied", "built", 4)
    assert two.restarted(passed) is two
    last = two.last_step([passed])
    note = "query 'built' was restarted before epoch 4, in 800 ms"
    assert last == Step("acknowledged", reason=note, result={"restarted": ["built"], "took_ms": 800})


def test_what_a_query_was_started_with_is_in_force_once_it_runs() -> None:
    assert progress().restarted(replace(BUILT, passed=7, since=-1)).applied == {}
    one = progress().restarted(replace(BUILT, passed=9, since=2))
    assert one.last_step([BUILT]) == Step("acknowledged")


def test_an_aligned_key_is_in_force_when_it_is_released() -> None:
    passed = replace(BUILT, passed=9, since=2)
    one = progress(delivery=Delivery.ALIGNED)
    assert one.restarted(passed) is one
    assert replace(one, rebuilt={"built": Rebuilt(2, 1)}).restarted(passed).applied == {"built": 2}


def test_an_interrupted_epoch_is_named() -> None:
    assert Rebuilt(4, 800, 3).note("q").endswith("; epoch 3 was interrupted, and completed before")


def test_a_key_that_no_function_reads_is_rejected() -> None:
    last = progress("other").last_step([BUILT])
    assert last is not None and last.status == "rejected" and "its function has not read it" in last.reason


def test_settings_of_sparks_are_for_functions_of_the_configuration() -> None:
    key = "spark.sql.ansi.enabled"
    seen = progress(key).seen(WRITER, 3, {"a": SourceOffset("a", control=9)})
    assert seen.applied == {}
    last = seen.last_step([WRITER])
    assert last is not None and last.status == "rejected" and "was added as a writer" in last.reason
    both = seen.restarted(replace(BUILT, passed=7, since=1)).last_step([WRITER, BUILT])
    assert both is not None and both.status == "acknowledged" and "was added as a writer" in both.reason
