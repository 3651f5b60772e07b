"""The contract of sources as a suite of tests (pytest), without Spark. For any source, including your own.

    class TestMySource(SourceContract):
        @pytest.fixture
        def world(self, tmp_path):
            return MyWorld(tmp_path)      # a SourceWorld: external data, and the rows in it

`source_kit` checks the rules while it drives the source: JSON preserves positions, `advance` stays within its limits,
splits cover their range, a range that is read again has the same rows. A test that verifies a line of the conformance
table is named after it. `SourceQueryContract` in `source_queries` has the tests that need Spark.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.sources.contract import ChannelSource, Committed
from spark_ext.testing.source_kit import SourceRun, Trace, drive, read_batch


class SourceWorld(ABC):
    """The external data of one test (files, a table, a topic), and a source that reads it.

    It has at least three channels (but see `one_channel`), of different lengths if they end, and 20 rows or more.
    """

    small: ClassVar[Mapping[str, str]] = {"max_rows_per_epoch": "6"}
    """Options with which the source needs many epochs, and its channels end in different ones."""
    one_channel: ClassVar[bool] = False
    """Whether the source never has more than one channel."""
    schema: StructType | None = None
    """The schema that a user passes to `.schema(...)`; None: the source determines it."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Passwords and tokens in the options: nothing may show them."""
        return ()

    @abstractmethod
    def source(self, **options: str) -> ChannelSource:
        """A new source that reads this world, with additional options."""

    @abstractmethod
    def expected(self) -> list[dict[str, Any]]:
        """All rows of the source, in any order."""

    @property
    def options(self) -> dict[str, str]:
        """The options without additional ones, `uid` included."""
        return dict(self.source().given)

    def misfits(self) -> Sequence[StructType]:
        """Schemas that a user could declare and that do not match the rows."""
        return ()

    def check_acknowledged(self, epoch: Committed) -> None:  # noqa: B027 (most sources acknowledge nothing)
        """Check the external effect of `on_epoch_committed`; raise AssertionError if it is missing."""


class SourceContract:
    """Define the fixture `world` in a subclass named `Test...`."""

    def test_each_row_is_there_once(self, world: SourceWorld) -> None:
        """Without any failure; a bounded source ends."""
        run = _run(world, available_now=not world.source().bounded)
        while run.epoch():
            pass
        assert run.offset.ended is run.source.bounded
        _same(run.trace, world)

    @pytest.mark.parametrize("seed", range(5))
    def test_each_row_is_there_once_under_random_limits_and_crashes(self, world: SourceWorld, seed: int) -> None:
        """With splits, replays, repeated reads and planners that die; each read of a range gives the same rows."""
        _same(_drive(world, rng=random.Random(seed), crash=0.3), world)

    def test_a_planner_that_dies_at_every_step_loses_nothing(self, world: SourceWorld) -> None:
        """In each epoch: after a plan that is not logged, after the plan is logged, and after the rows are read."""
        run = _run(world)
        while True:
            # A plan that never becomes an epoch, made by this planner and by one that dies right after it.
            run.plan_and_discard()
            run.restart(world.small)
            run.plan_and_discard()
            if not run.epoch(repeat=1.0):
                break
            run.replay(world.small)
        _same(run.trace, world)

    @pytest.mark.parametrize("lag", [0, 10_000])
    def test_r7_dropping_state_of_finished_channels_changes_nothing(self, world: SourceWorld, lag: int) -> None:
        """With a ledger that has each flag at once, so that the offset drops the channel, and one that never has."""
        run = _run(world, lag=lag)
        while run.epoch():
            run.restart(world.small)
        _same(run.trace, world)
        if run.source.channels_end and not world.one_channel:
            forgotten = 0 if lag else run.before.sequence
            assert run.offset.confirmed == forgotten
            assert len(run.offset.finished) == len(run.trace.finished) - forgotten
            assert run.before.sequence > 0, "give the world channels of different lengths"

    @pytest.mark.parametrize("readers", [5, 1, 2])
    def test_r6_remaining_channels_continue_on_any_number_of_readers(self, world: SourceWorld, readers: int) -> None:
        """Some of the channels have finished; those are not read again."""
        run = _run(world, more={"readers": "4"})
        if run.source.channels_end and not world.one_channel:
            while not run.trace.finished:
                assert run.epoch() and not run.offset.ended, "give the world channels of different lengths"
        else:
            assert run.epoch() and run.epoch()
        finished = {name: run.trace.rows(name).num_rows for name in run.trace.finished}
        run.restart({**world.small, "readers": str(readers)})
        while run.epoch():
            pass
        assert {name: run.trace.rows(name).num_rows for name in finished} == finished
        _same(run.trace, world)

    def test_r1_a_source_that_has_finished_is_not_read_again(self, world: SourceWorld) -> None:
        """A new planner plans nothing, as the number of rows shows."""
        run = _run(world)
        while run.epoch():
            pass
        run.restart()
        assert not run.epoch()
        assert run.trace.all_rows().num_rows == len(world.expected())

    def test_r2_the_last_epoch_is_read_again_if_it_was_not_committed(self, world: SourceWorld) -> None:
        """The source had finished in that epoch: the replay has the same rows, and the source is finished again."""
        run = _run(world)
        while run.epoch():
            pass
        run.replay(world.small)
        assert not run.epoch()
        _same(run.trace, world)

    def test_f10_the_last_epoch_is_acknowledged_without_a_new_plan(self, world: SourceWorld) -> None:
        """As in the final checkpoint, from the options alone; and once more, as after a crash in the middle of it."""
        run = _run(world)
        while run.epoch():
            pass
        final = Committed.of(run.offset, final=run.source.bounded)
        for _ in range(2):
            world.source().on_epoch_committed(final)
        world.check_acknowledged(final)

    def test_channels_are_the_same_for_each_planner(self, world: SourceWorld) -> None:
        """Ids must be stable, because positions are stored under them."""
        first, second = ([channel.id for channel in _run(world).source.discover()] for _ in range(2))
        assert len(first) == len(set(first)) >= (1 if world.one_channel else 3)
        assert sorted(first) == sorted(second)

    def test_the_lag_that_it_states_covers_the_rows_that_are_left(self, world: SourceWorld) -> None:
        """It may count what turns out to be no row, such as a deleted one, and is 0 at the end. None is unknown."""
        run = _run(world, available_now=not world.source().bounded)
        stated: list[tuple[int, int]] = []
        while run.epoch():
            lag = run.planning.planner.lag(run.offset)
            stated += [] if lag is None else [(lag, run.trace.all_rows().num_rows)]
        whole = run.trace.all_rows().num_rows
        assert all(lag >= whole - read for lag, read in stated)
        assert not stated or not run.source.bounded or stated[-1][0] == 0

    def test_f19_a_batch_read_has_the_same_rows(self, world: SourceWorld) -> None:
        """To the end, or without one to where it is now; or it is refused by name. Nothing is acknowledged."""
        source = world.source()
        if source.only_in_jobs or not (source.bounded or source.ends_now):
            with pytest.raises(ConfigurationError) as refused:
                read_batch(source, world.schema)
            assert source.options.uid in refused.value.operator
            return
        _same(read_batch(source, world.schema), world)

    def test_rows_that_do_not_have_the_declared_schema_are_refused(self, world: SourceWorld) -> None:
        """Before the first row, or at the first row that does not match; rows are never changed silently."""
        for schema in world.misfits():
            with pytest.raises((ConfigurationError, DataError)) as refused:
                _drive(world, rng=random.Random(1), crash=0.0, schema=schema)
            _no_secret(world, str(refused.value))
            if not world.source().only_in_jobs:
                with pytest.raises(type(refused.value)) as in_batch:
                    read_batch(world.source(), schema)
                _no_secret(world, str(in_batch.value))

    def test_an_option_that_is_not_there_is_refused(self, world: SourceWorld) -> None:
        """At once, with the option's name, and without showing a secret."""
        with pytest.raises(ConfigurationError, match="unknown option 'not_an_option'") as refused:
            world.source(not_an_option="1")
        _no_secret(world, str(refused.value))
        with pytest.raises(ConfigurationError, match="max_rows_per_epoch"):
            world.source(max_rows_per_epoch="0")
        _no_secret(world, f"{world.source().options.public()}")


def _run(world: SourceWorld, more: Mapping[str, str] | None = None, **how: Any) -> SourceRun:
    """A run with small epochs."""
    limits = [{**world.small, **(more or {})}]
    return SourceRun(lambda given: world.source(**given), {}, schema=world.schema, limits=limits, **how)


def _drive(world: SourceWorld, *, schema: StructType | None = None, **how: Any) -> Trace:
    return drive(lambda given: world.source(**given), {}, schema=schema or world.schema, **how)


def _same(trace: Trace, world: SourceWorld) -> None:
    """Check that the trace has each row of the world once, and no other row."""
    assert _sorted(trace.all_rows().to_pylist()) == _sorted(as_rows(trace.schema, world.expected()))


def as_rows(schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the values that they have after conversion to Arrow and back."""
    taken = [{name: row[name] for name in schema.names} for row in rows]
    out: list[dict[str, Any]] = pa.Table.from_pylist(taken, schema=schema).to_pylist()
    return out


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    # Compared as text, because a NaN is not equal to itself and nulls have no order.
    return sorted(map(repr, rows))


def _no_secret(world: SourceWorld, text: str) -> None:
    assert not any(secret in text for secret in world.secrets)
