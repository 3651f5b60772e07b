"""The part of the contract of sinks that is about identity over time: copies of a state, older states, other targets.

`SinkContract` in `sink_contract` contains it; the conformance table names its lines I4, I5 and I7.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from spark_ext.errors import ConfigurationError, FencedError, StateError
from spark_ext.model.commits import CommitOutcome
from spark_ext.testing.sink_driver import Driver, SinkTarget, numbered

ALREADY = CommitOutcome.ALREADY_COMMITTED


class SinkIdentityContract:
    """Who may commit, and to which target."""

    def test_i4_of_two_copies_of_a_state_only_the_one_that_claimed_the_target_commits(self, target: SinkTarget) -> None:
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

    def test_i5_an_equal_number_with_another_start_is_fenced_like_an_older_one(self, target: SinkTarget) -> None:
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
        second = Driver(target, incarnation=2)
        second.claim()
        second.run(0, numbered(0, 5))
        with pytest.raises(FencedError, match="incarnation 2"):
            first.run(1, [])
        with pytest.raises(FencedError, match="incarnation 2 of the job has been started twice"):
            copy.run(1, [])
        second.run(1, [])
        assert target.ids() == list(range(5))
        assert second.attempts == 1, "an empty epoch is not committed"

    def test_i4_a_state_that_is_older_than_the_target_is_refused_at_the_claim(self, target: SinkTarget) -> None:
        """A state put back from a backup would plan committed epochs again."""
        first = Driver(target)
        first.claim()
        for epoch in range(3):
            first.run(epoch, numbered(epoch * 5, epoch * 5 + 5))
        with pytest.raises(StateError, match="holds epoch 2, and the newest epoch that this state has planned is 1"):
            Driver(target, incarnation=2, planned=1).claim()
        with pytest.raises(StateError, match="a query whose checkpoint directory is not the one"):
            Driver(target, incarnation=2, planned=-1, query_id="another").claim()
        first.run(3, numbered(15, 20))
        assert target.ids() == list(range(20)), "a refused claim fences nobody off"
        crashed = Driver(target, incarnation=2, planned=3)
        crashed.claim()
        crashed.run(3, numbered(15, 20))
        assert crashed.outcomes == [ALREADY]

    def test_i4_an_epoch_of_a_copy_is_not_taken_for_the_one_that_this_state_has_planned(
        self, target: SinkTarget
    ) -> None:
        """Both numbers are equal, and the rows are not: this state planned it, and a copy of the state committed it."""
        first = Driver(target, planned=-1, starts=frozenset())
        first.claim()
        first.write(0, numbered(0, 10))
        copy = Driver(target, incarnation=2, start=5, planned=-1, starts=frozenset({first.start}))
        copy.claim()
        copy.run(0, numbered(0, 5))
        again = Driver(target, incarnation=3, planned=0, starts=frozenset({first.start, 1002}))
        with pytest.raises(
            StateError, match="claimed by incarnation 2 of this job, in a start that this state does not"
        ):
            again.claim()
        copy.run(1, numbered(5, 10))
        successor = Driver(target, incarnation=3, start=6, planned=1, starts=frozenset({first.start, 5}))
        successor.claim()
        assert target.ids() == list(range(10))

    @pytest.mark.parametrize(
        ("rows", "recreated"),
        [(5, False), (5, True), (0, False)],
        ids=["rows-dropped", "rows-recreated", "empty-dropped"],
    )
    def test_i7_a_target_that_is_dropped_under_a_running_job_is_an_error(
        self, target: SinkTarget, rows: int, recreated: bool
    ) -> None:
        """The next commit must not create it without its rows, not even in an epoch without rows."""
        driver = Driver(target)
        driver.claim()
        driver.run(0, numbered(0, 5))
        self._drop(target, recreated)
        left = target.ids()
        with pytest.raises(StateError, match="not the target that was claimed"):
            driver.run(1, numbered(5, 5 + rows))
        assert target.ids() == left, "nothing was written"

    @pytest.mark.parametrize("recreated", [False, True], ids=["dropped", "recreated"])
    def test_i7_a_target_that_is_dropped_while_the_job_is_stopped_is_an_error(
        self, target: SinkTarget, recreated: bool
    ) -> None:
        """The next start must not create it."""
        driver = Driver(target)
        driver.claim()
        driver.run(0, numbered(0, 5))
        self._drop(target, recreated)
        left = target.ids()
        with pytest.raises((StateError, ConfigurationError), match=r"not the target that was claimed|does not exist"):
            Driver(target, incarnation=2).claim()
        assert target.ids() == left, "nothing was written"

    def test_i7_a_target_that_is_put_back_is_an_error(self, target: SinkTarget) -> None:
        """Epochs that it has lost are missed by the running job and at the next start."""
        driver = Driver(target)
        driver.claim()
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

    def _drop(self, target: SinkTarget, recreated: bool) -> None:
        try:
            target.drop()
        except NotImplementedError:
            pytest.skip("the target has no `drop`")
        if recreated:
            target.make_anew()
