"""The contract of sinks as a suite of tests (pytest), without Spark. For any sink, including your own.

    class TestMySink(SinkContract):
        @pytest.fixture
        def target(self, tmp_path):
            return MyTarget(tmp_path / "out")      # a SinkTarget: see `sink_driver`

The name of each test starts with the line of the conformance table that it verifies. Drivers that are killed or frozen
are real processes. `SinkQueryContract` in `sink_queries` has the tests that need Spark.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tenacity
from pyspark.sql import types as T

from spark_ext import failpoints
from spark_ext.errors import CommitError, ConfigurationError, FencedError, StateError
from spark_ext.model.commits import CommitOutcome
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.runtime.writer import Written
from spark_ext.testing import every_type
from spark_ext.testing.children import Child, frozen, killed_at, was_fenced
from spark_ext.testing.sink_bad_rows import SinkBadRowsContract
from spark_ext.testing.sink_driver import STATES, Driver, SinkTarget, numbered, run_epoch, run_job_beside_another, table
from spark_ext.worker_internals import to_arrow_schema

ALREADY = CommitOutcome.ALREADY_COMMITTED
COMMITTED = CommitOutcome.COMMITTED


class SinkContract(SinkBadRowsContract):
    """Define the fixture `target` in a subclass named `Test...`."""

    @pytest.fixture(autouse=True)
    def _states_of_its_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A folder for the states of jobs, also for child processes; and fail points with their counters reset."""
        monkeypatch.setenv(STATES, str(tmp_path / "states"))
        monkeypatch.setattr(failpoints, "_passed", Counter())

    def test_c1_all_messages_have_arrived_before_anything_is_visible(self, target: SinkTarget) -> None:
        """A commit that lacks the message of one task is rejected, and makes nothing visible."""
        driver = Driver(target).claim()
        messages = [driver.write(0, numbered(n * 5, n * 5 + 5), partition=n) for n in range(3)]
        assert target.ids() == [], "written but not committed"
        incomplete: list[Written | None] = [*messages[:2], None]
        with pytest.raises(StateError, match="1 of 3 tasks of epoch 0 did not report"):
            driver.commit(incomplete, 0)
        driver.abort(incomplete, 0)
        assert target.ids() == []
        driver.commit(messages, 0)
        assert target.ids() == list(range(15))
        assert driver.outcomes == [COMMITTED], "everything in one step"

    def test_c2_a_crash_before_commit_shows_nothing_until_restart(self, target: SinkTarget) -> None:
        """A driver is killed in the middle of its second commit; the epoch is then repeated with other partitions."""
        driver = Driver(target).claim()
        driver.run(0, numbered(0, 5))
        killed_at(target.before_commit, run_epoch, target, 1, 1, 5, 10)
        assert target.ids() == list(range(5))
        second = Driver(target, incarnation=2).claim()
        second.run(1, numbered(5, 10), partitions=3)
        assert target.ids() == list(range(10))

    def test_c2_crash_at_every_step_and_each_epoch_is_there_once(self, target: SinkTarget) -> None:
        """A starting driver is killed at each fail point in turn; its successor repeats the epoch."""
        points = (
            "sink.written",
            "sink.before_commit",
            target.before_commit,
            target.after_commit,
            "sink.committed",
            *target.points,
        )
        Driver(target).claim()
        for number, point in enumerate(points):
            start, end = number * 5, number * 5 + 5
            killed_at(point, run_epoch, target, 2 * number + 1, number, start, end, True)
            successor = Driver(target, incarnation=2 * number + 2).claim()
            successor.run(number, numbered(start, end))
            assert target.ids() == list(range(end)), f"killed at {point}"

    def test_c3_crash_between_the_two_commits_is_recognised(self, target: SinkTarget) -> None:
        """The sink has committed, but Spark has not: the epoch is replayed with another number of partitions."""
        Driver(target).claim()
        killed_at("sink.committed", run_epoch, target, 1, 0, 0, 5)
        assert target.ids() == list(range(5))
        second = Driver(target, incarnation=2).claim()
        second.run(0, numbered(0, 5), partitions=5)
        assert second.outcomes == [ALREADY]
        second.run(1, numbered(5, 10), partitions=5)
        assert second.outcomes == [ALREADY, COMMITTED]
        assert target.ids() == list(range(10))

    def test_c4_a_commit_in_doubt_is_aborted_and_then_repeated(
        self, target: SinkTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in Spark: the abort does not undo the rows, and the second commit finds them."""
        driver = Driver(target, options={"commit_attempts": "1"}).claim()
        messages = [driver.write(0, numbered(0, 5))]
        monkeypatch.setenv(failpoints.VARIABLE, f"{target.after_commit}=raise")
        with pytest.raises(CommitError, match="could not be committed in 1 attempts") as failure:
            driver.commit(messages, 0)
        assert "in doubt" in failure.value.kept
        driver.abort(messages, 0)
        assert target.ids() == list(range(5))
        driver.commit(messages, 0)
        assert driver.outcomes == [ALREADY]
        assert target.ids() == list(range(5))

    def test_c5_prepared_work_of_the_dead_follows_its_own_record(self, target: SinkTarget) -> None:
        """Committed work is kept, and so is what the claiming incarnation and other sinks have prepared."""
        first = Driver(target).claim()
        first.run(0, numbered(0, 5))
        before = target.leftovers()
        killed_at("sink.before_commit", run_epoch, target, 1, 1, 5, 10)
        dead = target.leftovers() - before
        assert bool(dead) is target.stages
        other = Driver(target, uid="other", job_id="job-2").claim()
        others = [other.write(0, numbered(90, 95))]
        kept = target.leftovers() - before - dead
        second = Driver(target, incarnation=2).claim()
        mine = [second.write(1, numbered(5, 10))]
        second.claim()
        assert not dead & target.leftovers()
        assert kept <= target.leftovers()
        second.commit(mine, 1)
        assert target.ids() == list(range(10))
        other.commit(others, 0)
        assert target.ids() == [*range(10), *range(90, 95)]

    def test_c6_a_late_repeated_or_unordered_completion_is_harmless(self, target: SinkTarget) -> None:
        """Also if the rows were prepared again, by another attempt at the same partition."""
        driver = Driver(target).claim()
        messages = []
        for epoch in range(3):
            messages.append([driver.write(epoch, numbered(epoch * 5, epoch * 5 + 5))])
            driver.commit(messages[epoch], epoch)
        for epoch in (2, 0, 1, 1):
            driver.commit(messages[epoch], epoch)
            driver.abort(messages[epoch], epoch)
            driver.commit([driver.write(epoch, numbered(epoch * 5, epoch * 5 + 5), attempt=7)], epoch)
        assert driver.outcomes == [COMMITTED] * 3 + [ALREADY] * 8
        driver.run(3, numbered(15, 20))
        assert target.ids() == list(range(20))

    def test_c7_an_older_incarnation_that_wakes_up_cannot_commit(self, target: SinkTarget, tmp_path: Path) -> None:
        """It was frozen with all messages received; its successor has repeated the epoch and continued."""
        Driver(target).claim()
        second = Driver(target, incarnation=2)
        with frozen(tmp_path, "sink.before_commit", run_epoch, target, 1, 0, 0, 5) as zombie:
            second.claim()
            second.run(0, numbered(0, 5))
            second.run(1, numbered(5, 10))
            assert was_fenced(said := zombie.wake()), said
        with pytest.raises(FencedError, match="incarnation 2"):
            Driver(target).claim()
        assert target.ids() == list(range(10))

    def test_c8_commit_errors_are_retried_with_back_off_and_a_limit(
        self, target: SinkTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Waits are recorded instead of slept; the target is really damaged, and repaired afterwards."""
        driver = Driver(target, options={"commit_attempts": "6", "commit_backoff": "1 s"}).claim()
        messages = [driver.write(0, numbered(0, 5))]
        waits: dict[int, float] = {}

        def note(wait: float) -> None:
            """A sink may also wait inside an attempt; the wait of the base class comes last, after the attempt."""
            waits[driver.attempts] = wait

        monkeypatch.setattr(tenacity.nap, "time", types.SimpleNamespace(sleep=note))
        repair = target.damage()
        try:
            with pytest.raises(CommitError, match="epoch 0 could not be committed in 6 attempts") as failure:
                driver.commit(messages, 0)
        finally:
            repair()
        assert "what 1 tasks prepared" in failure.value.kept and "in doubt" in failure.value.kept
        assert not any(secret in str(failure.value) for secret in target.secrets)
        assert driver.attempts == 6
        for attempt in range(1, 6):
            least = 2 ** (attempt - 1)
            assert min(least, 10) <= waits[attempt] <= min(least + 1, 10)
        assert waits[5] == 10

    def test_c8_a_target_that_is_repaired_in_time_takes_the_epoch(
        self, target: SinkTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is repaired in the wait after the third attempt, and the query notices nothing."""
        driver = Driver(target, options={"commit_attempts": "11", "commit_backoff": "1 ms"}).claim()
        messages = [driver.write(0, numbered(0, 5))]
        repair = target.damage()
        repaired = False

        def repair_in_the_third_wait(wait: float) -> None:
            nonlocal repaired
            if driver.attempts >= 3 and not repaired:
                repaired = True
                repair()

        monkeypatch.setattr(tenacity.nap, "time", types.SimpleNamespace(sleep=repair_in_the_third_wait))
        try:
            driver.commit(messages, 0)
        finally:
            if not repaired:
                repair()
        assert driver.attempts >= 4
        assert target.ids() == list(range(5))

    def test_c9_an_empty_epoch_touches_nothing(self, target: SinkTarget) -> None:
        """With tasks that had no rows, and with no task at all; the next epoch is committed as usual."""
        driver = Driver(target).claim()
        before = target.leftovers()
        driver.commit([driver.write(0, [], partition=n) for n in range(2)], 0)
        driver.commit([], 1)
        assert (target.ids(), target.leftovers(), driver.attempts) == ([], before, 0)
        driver.run(2, numbered(0, 1))
        assert target.ids() == [0]

    def test_c9_an_empty_partition_beside_one_row(self, target: SinkTarget) -> None:
        """As a filter may leave it."""
        driver = Driver(target).claim()
        driver.commit([driver.write(0, numbered(7, 8) if n == 1 else [], n) for n in range(3)], 0)
        assert target.ids() == [7]

    def test_c9_a_huge_epoch(self, target: SinkTarget) -> None:
        """In batches, as Spark passes them."""
        step = 10_000
        driver = Driver(target, schema=T.StructType([T.StructField("id", T.LongType(), False)])).claim()

        def batches() -> Iterator[pa.RecordBatch]:
            schema = to_arrow_schema(driver.schema)
            for start in range(0, target.huge, step):
                ids = pa.array(range(start, min(start + step, target.huge)), pa.int64())
                yield pa.RecordBatch.from_arrays([ids], schema=schema)

        driver.commit([driver.write_batches(0, batches())], 0)
        assert target.ids() == list(range(target.huge))

    def test_c9_a_wide_row(self, target: SinkTarget) -> None:
        """Many columns, and one large value of two-byte characters."""
        names = [f"c{number}" for number in range(target.wide_columns)]
        schema = T.StructType([T.StructField(name, T.StringType()) for name in ("id", *names)])
        driver = Driver(target, schema=schema).claim()
        wide = {"id": "wide", **{name: name * 3 for name in names}, names[-1]: "ä" * (target.wide_value // 2)}
        driver.run(0, [wide])
        assert table(schema, target.rows()).to_pylist() == [wide]

    def test_c9_nulls(self, target: SinkTarget) -> None:
        """A row of nothing but nulls, and nulls between values."""
        driver = Driver(target).claim()
        rows: list[dict[str, Any]] = [{"id": None, "name": None}, {"id": 1, "name": None}, {"id": None, "name": "n"}]
        driver.run(0, rows)
        driver.run(1, [{"id": None, "name": None}])
        found = table(driver.schema, target.rows()).to_pylist()
        assert sorted(found, key=str) == sorted([*rows, rows[0]], key=str)

    def test_c9_every_supported_type(self, target: SinkTarget) -> None:
        """Nested values, extreme values and nulls, of every type that the target supports."""
        driver = Driver(target, schema=target.types).claim()
        values = [every_type.row(number) for number in range(1, 400, 7)] + [every_type.empty(-1)]
        driver.run(0, values, partitions=2)
        found = table(target.types, target.rows()).sort_by("long")
        assert found.to_pylist() == table(target.types, values).sort_by("long").to_pylist()

    def test_c10_two_jobs_write_the_same_target_without_harm(self, target: SinkTarget) -> None:
        """Two concurrent processes, each with its own uid; each restarts and cleans up while the other runs."""
        with Child(run_job_beside_another, target, 0) as one, Child(run_job_beside_another, target, 1) as two:
            for child in (one, two):
                said = child.wait()
                assert "all epochs done" in said, said
        assert target.ids() == [mine * 1000 + n for mine in range(2) for n in range(30)]

    def test_c10_the_same_uid_of_another_job_is_refused(self, target: SinkTarget) -> None:
        """By the target, whatever session the other job runs in."""
        first = Driver(target).claim()
        first.run(0, numbered(0, 5))
        other = Driver(target, job_id="job-2")
        with pytest.raises(ConfigurationError, match="'out'"):
            other.claim()
        first.check_claim()
        if type(target.sink()).check_claim is not TwoPhaseCommitSink.check_claim:
            with pytest.raises(ConfigurationError, match="'out'"):
                other.check_claim()
        assert target.ids() == list(range(5))
        first.run(1, numbered(5, 10))
        assert target.ids() == list(range(10))

    def test_c12_rows_of_open_windows_are_no_epoch_and_replace_none_that_are_newer(self, target: SinkTarget) -> None:
        """They may come again, are fenced like an epoch's, and those of a key are replaced by the next epoch."""
        if target.sink().early_key() is None:
            pytest.skip("the sink does not show rows early")
        driver, early = Driver(target).claim(), Driver(target, early=True)
        driver.run(0, numbered(0, 5))
        for _ in range(2):
            early.run(1, [{"id": 4, "name": "early"}, {"id": 9, "name": "early"}])
            assert {row["id"]: row["name"] for row in target.rows() if row["id"] > 3} == {4: "early", 9: "early"}
        driver.run(1, [{"id": 9, "name": "late"}])
        early.run(1, [{"id": 9, "name": "early"}])
        assert {row["id"]: row["name"] for row in target.rows() if row["id"] > 3} == {4: "early", 9: "late"}
        assert (driver.outcomes, early.outcomes) == ([COMMITTED, COMMITTED], [COMMITTED, COMMITTED, ALREADY])
        prepared = [early.write(2, [{"id": 9, "name": "stale"}])]
        Driver(target, incarnation=2).claim()
        with pytest.raises(FencedError, match="incarnation 2"):
            early.commit(prepared, 2)
        assert "stale" not in [row["name"] for row in target.rows()]

    @pytest.mark.parametrize("repeated", [False, True])
    def test_c11_a_driver_frozen_before_commit_wakes_after_cleanup(
        self, target: SinkTarget, tmp_path: Path, repeated: bool
    ) -> None:
        """Fails with FENCED, whether or not the epoch was repeated by then; nothing is lost, doubled or left over."""
        first, second = Driver(target), Driver(target, incarnation=2)
        first.claim()
        first.run(0, numbered(0, 5))
        before = target.leftovers()
        with frozen(tmp_path, target.before_commit, run_epoch, target, 1, 1, 5, 10) as zombie:
            prepared = target.leftovers() - before
            assert bool(prepared) is target.stages
            second.claim()
            assert not prepared & target.leftovers(), "cleaned up"
            if repeated:
                second.run(1, numbered(5, 10))
            assert was_fenced(said := zombie.wake()), said
        assert target.ids() == list(range(10 if repeated else 5))
        second.run(1, numbered(5, 10))
        second.run(2, numbered(10, 15))
        assert target.ids() == list(range(15))
        assert not prepared & target.leftovers()

    # -- identity over time: copies of a state, older states, other targets ------------------------------------------

    def test_i4_of_two_copies_of_a_state_only_the_claimer_commits(self, target: SinkTarget) -> None:
        """Their incarnations have one number, and the random numbers of their starts tell them apart."""
        first, copy = Driver(target), Driver(target, start=5)
        first.claim()
        first.run(0, numbered(0, 5))
        staged = [first.write(1, numbered(5, 10))]
        with pytest.raises(FencedError, match="incarnation 1 of the job has been started twice"):
            copy.claim()
        with suppress(FencedError):  # a sink may refuse as early as this
            copy.write(1, numbered(50, 55))
        first.commit(staged, 1)
        assert target.ids() == list(range(10)), "what the copy has staged leaves what the first has staged alone"
        with pytest.raises(FencedError, match="started twice"):
            copy.run(2, numbered(50, 55))
        assert target.ids() == list(range(10))

    def test_i5_an_equal_number_of_another_start_is_fenced_too(self, target: SinkTarget) -> None:
        """Two copies of a state that continue from one incarnation."""
        Driver(target).claim()
        copy, second = Driver(target, incarnation=2, start=5), Driver(target, incarnation=2)
        copy.claim()
        copy.run(0, numbered(0, 5))
        with pytest.raises(FencedError, match="incarnation 2 of the job has been started twice"):
            second.run(1, numbered(5, 10))
        with pytest.raises(FencedError, match="incarnation 2 of the job has been started twice"):
            second.claim()
        copy.claim()
        copy.run(1, numbered(5, 10))
        assert target.ids() == list(range(10))

    def test_i5_an_empty_epoch_of_another_start_is_fenced_too(self, target: SinkTarget) -> None:
        """An epoch without rows, of an older incarnation and of one of equal number."""
        first, copy = Driver(target), Driver(target, incarnation=2, start=5)
        first.claim()
        first.run(0, [])
        second = Driver(target, incarnation=2).claim()
        second.run(0, numbered(0, 5))
        with pytest.raises(FencedError, match="incarnation 2"):
            first.run(1, [])
        with pytest.raises(FencedError, match="incarnation 2 of the job has been started twice"):
            copy.run(1, [])
        second.run(1, [])
        assert target.ids() == list(range(5))
        assert second.attempts == 1, "an empty epoch is not committed"

    def test_i4_a_state_older_than_the_target_cannot_claim_it(self, target: SinkTarget) -> None:
        """A state put back from a backup would plan committed epochs again."""
        first = Driver(target).claim()
        for epoch in range(3):
            first.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
        with pytest.raises(StateError, match="holds epoch 2, and the newest epoch that this state has planned is 1"):
            Driver(target, incarnation=2, planned=1).claim()
        with pytest.raises(StateError, match="a query whose checkpoint directory is not the one"):
            Driver(target, incarnation=2, planned=-1, query_id="another").claim()
        first.run(3, numbered(15, 20))
        assert target.ids() == list(range(20)), "a refused claim fences nobody off"
        crashed = Driver(target, incarnation=2, planned=3).claim()
        crashed.run(3, numbered(15, 20))
        assert crashed.outcomes == [ALREADY]

    def test_i4_an_epoch_of_a_copy_is_not_taken_for_a_planned_one(self, target: SinkTarget) -> None:
        """Both numbers are equal, and the rows are not: this state planned it, and a copy of the state committed it."""
        first = Driver(target, planned=-1, starts=frozenset()).claim()
        first.write(0, numbered(0, 10))
        copy = Driver(target, incarnation=2, start=5, planned=-1, starts=frozenset({first.start})).claim()
        copy.run(0, numbered(0, 5))
        again = Driver(target, incarnation=3, planned=0, starts=frozenset({first.start, 1002}))
        with pytest.raises(
            StateError, match="claimed by incarnation 2 of this job, in a start that this state does not"
        ):
            again.claim()
        copy.run(1, numbered(5, 10))
        Driver(target, incarnation=3, start=6, planned=1, starts=frozenset({first.start, 5})).claim()
        assert target.ids() == list(range(10))

    @pytest.mark.parametrize(
        ("rows", "recreated"),
        [(5, False), (5, True), (0, False)],
        ids=["rows-dropped", "rows-recreated", "empty-dropped"],
    )
    def test_i7_a_target_dropped_under_a_running_job_is_an_error(
        self, target: SinkTarget, rows: int, recreated: bool
    ) -> None:
        """The next commit must not create it without its rows, not even in an epoch without rows."""
        driver = Driver(target).claim()
        driver.run(0, numbered(0, 5))
        _drop(target, recreated)
        left = target.ids()
        with pytest.raises(StateError, match="not the target that was claimed"):
            driver.run(1, numbered(5, 5 + rows))
        assert target.ids() == left, "nothing was written"

    @pytest.mark.parametrize("recreated", [False, True], ids=["dropped", "recreated"])
    def test_i7_a_target_dropped_under_a_stopped_job_is_an_error(self, target: SinkTarget, recreated: bool) -> None:
        """The next start must not create it."""
        driver = Driver(target).claim()
        driver.run(0, numbered(0, 5))
        _drop(target, recreated)
        left = target.ids()
        with pytest.raises((StateError, ConfigurationError), match=r"not the target that was claimed|does not exist"):
            Driver(target, incarnation=2).claim()
        assert target.ids() == left, "nothing was written"

    def test_i7_a_target_that_is_put_back_is_an_error(self, target: SinkTarget) -> None:
        """Epochs that it has lost are missed by the running job and at the next start."""
        driver = Driver(target).claim()
        driver.run(0, numbered(0, 5))
        try:
            put_back = target.snapshot()
        except NotImplementedError:
            pytest.skip("the target has no `snapshot`")
        driver.run(1, numbered(5, 10))
        put_back()
        left = target.ids()
        with pytest.raises(StateError, match="not the target that was claimed"):
            driver.run(2, numbered(10, 15))
        with pytest.raises(StateError, match="not the target that was claimed"):
            Driver(target, incarnation=2).claim()
        assert target.ids() == left, "nothing was written"

    # -- options ------------------------------------------------------------------------------------------------------

    def test_an_option_that_is_not_there_is_refused(self, target: SinkTarget) -> None:
        """At once, with the option's name, and without showing a secret."""
        with pytest.raises(ConfigurationError, match="unknown option 'not_an_option'") as refused:
            target.sink("out", not_an_option="1")
        assert not any(secret in str(refused.value) for secret in target.secrets)
        assert not any(secret in f"{target.sink().options.public()}" for secret in target.secrets)


def _drop(target: SinkTarget, recreated: bool) -> None:
    try:
        target.drop()
    except NotImplementedError:
        pytest.skip("the target has no `drop`")
    if recreated:
        target.make_anew()
