"""The contract of exchanges as a suite of tests (pytest), without Spark. For any kind, including your own.

    class TestMyKind(ExchangeContract):
        @pytest.fixture
        def place(self, tmp_path):
            return Place("my_kind", str(tmp_path / "exchange"))     # see `exchange_driver`

It uses nothing but `spark_ext/exchange/contract.py`, and what a subclass of `Place` says of a kind whose segments are
not files of the exchange's folder. The name of each test starts with the line of the conformance table that it
verifies. Producers that are killed or frozen are real processes.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ext import failpoints
from spark_ext.errors import ConfigurationError, FencedError, StateError, StorageError
from spark_ext.exchange import decisions
from spark_ext.exchange.contract import Held
from spark_ext.exchange.entries import Entry, EntryKind, LogState
from spark_ext.exchange.positions import Front, Piece
from spark_ext.failpoints import FailPoint
from spark_ext.model.commits import FenceMark, Task
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.testing import every_type
from spark_ext.testing.children import Child, frozen, killed_at, was_fenced
from spark_ext.testing.exchange_driver import (
    ROWS,
    Place,
    Producer,
    Reader,
    claim_and_run,
    numbered,
    register_many,
    release_and_delete,
    run_unclaimed,
)
from spark_ext.testing.exchange_savepoints import ExchangeSavepointContract


class ExchangeContract(ExchangeSavepointContract):
    """Define the fixture `place` in a subclass named `Test...`."""

    @pytest.fixture(autouse=True)
    def _fail_points_reset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(failpoints, "_passed", Counter())

    # -- the producer is gone -----------------------------------------------------------------------------------------

    def test_x1_a_new_consumer_reads_all_of_a_killed_producer(self, place: Place) -> None:
        """After its last entry, and in the middle of the next one, whose rows are then not there."""
        killed_at(FailPoint.EXCHANGE_ENTRY, claim_and_run, place, 1, 0, 0, 10)
        killed_at(FailPoint.EXCHANGE_BEFORE_ENTRY, run_unclaimed, place, 1, 1, 10, 20)
        assert Reader(place).all().ids == list(range(10))
        assert place.holds(2), "the rows of the second epoch are stored, and no entry names them"
        second = Producer(place, 2).claim()
        assert place.holds(1, unnamed=1)
        second.run(1, 10, 20)
        assert Reader(place).all().ids == list(range(20))

    def test_x1_a_producer_killed_at_any_step_leaves_all_of_an_epoch_or_nothing(self, place: Place) -> None:
        """At each step of its rows and its entries, also inside the kind; the next start writes the epoch once."""
        Producer(place).claim()
        done, incarnation = 0, 1
        for point in (FailPoint.EXCHANGE_BEFORE_ENTRY, FailPoint.EXCHANGE_ENTRY, *place.points):
            step, ended = 0, 1
            while ended:
                step, incarnation = step + 1, incarnation + 1
                given = (place, incarnation, done, done * 10, done * 10 + 10)
                with Child(claim_and_run, *given, env={failpoints.VARIABLE: f"{point}=kill#{step}"}) as child:
                    child.wait()
                    ended = child.poll() or 0
                assert Reader(place).all().ids in (list(range(done * 10)), list(range(done * 10 + 10))), (point, step)
                incarnation += 1
                Producer(place, incarnation).claim().run(done, done * 10, done * 10 + 10)
                done += 1
                assert Reader(place).all().ids == list(range(done * 10)), (point, step)
            assert step > 1, f"{point} was not passed"

    def test_x1_a_new_consumer_reads_all_of_a_finished_producer(self, place: Place) -> None:
        """All consumers read the same rows in the same order, and find the end."""
        producer = Producer(place).claim()
        for epoch in range(3):
            producer.run(epoch, epoch * 10, epoch * 10 + 10, tasks=2)
        producer.seal(3)
        del producer
        first, second = Reader(place).all(), Reader(place).all(4)
        assert first.sealed and second.sealed
        assert first.ids == list(range(30))
        assert first.rows == second.rows == {part: list(range(part, 30, 3)) for part in range(3)}

    def test_x1_a_continuing_reader_and_a_late_one_read_the_same(self, place: Place) -> None:
        """With more entries than a kind leaves without a stored state, a log checkpoint, or what it has of the sort."""
        producer = Producer(place).claim()
        early = Reader(place)
        for epoch in range(150):
            producer.run(epoch, epoch * 2, epoch * 2 + 2)
            if epoch in (0, 1, 149):
                early.all()
        late = Reader(place).all(7)
        assert early.ids == list(range(300))
        assert late.rows == early.rows
        again = Reader(place, at=Front(100, (0, 0, 0))).all()
        assert again.ids == list(range(198, 300)), "entry 0 is the claim, so entry 100 is epoch 99"

    # -- release ------------------------------------------------------------------------------------------------------

    def test_x2_a_release_deletes_only_what_is_below_it(self, place: Place) -> None:
        """From the disk as well; a reader before the bound finds nothing, one behind it finds everything."""
        producer = Producer(place).claim()
        states = [producer.run(epoch, epoch * 10, epoch * 10 + 10) for epoch in range(6)]
        assert [state.last for state in states if state] == [1, 2, 3, 4, 5, 6]
        kept = Reader(place)
        state = producer.release(4, 30)
        assert state is not None and (state.released, state.released_rows) == (4, 30)
        assert place.holds(6), "written, but nothing is deleted yet"
        producer.parts.master.delete_released()
        assert place.holds(3)
        fresh = place.parts().master
        assert (fresh.log.look(), fresh.log.entry(3)) == (state, None)
        assert kept.all().ids == Reader(place).all().ids == list(range(30, 60))
        assert fresh.held() == producer.parts.master.held()
        assert (fresh.held().entries, fresh.held().rows) == (4, 30), "three epochs and the release"
        producer.parts.master.delete_released()
        assert place.holds(3)

    def test_x2_the_next_release_completes_one_killed_at_any_step(self, place: Place) -> None:
        """What is held can be read after each of them, and what is released is gone in the end."""
        Producer(place).claim()
        writer = Producer(place)
        for epoch in range(4):
            writer.run(epoch, epoch * 10, epoch * 10 + 10)
        point, step = FailPoint.EXCHANGE_BEFORE_DELETING, 0
        while True:
            step += 1
            done = Child(release_and_delete, place, 1, 3, 20, env={failpoints.VARIABLE: f"{point}=kill#{step}"})
            with done as child:
                child.wait()
                ended = child.poll()
            assert Reader(place).all().ids == list(range(20, 40)), f"killed at step {step}"
            writer.run(3 + step, 30 + step * 10, 40 + step * 10)
            writer.cut(writer.parts.master.log.look().last - 1, 40)
            if ended == 0:
                break
        assert step > 1
        master = place.parts().master
        master.delete_released()
        named = {one.name for entry in _entries(place) for one in entry.segments}
        assert place.stored() == named

    def test_x2_a_writer_frozen_over_a_release_adds_nothing_twice(self, place: Place, tmp_path: Path) -> None:
        """It has decided on its entry; others have used that number, and deleted it, before it continues."""
        producer = Producer(place).claim()
        with frozen(tmp_path, FailPoint.EXCHANGE_BEFORE_ENTRY, run_unclaimed, place, 1, 0, 0, 10) as writer:
            for number in range(5):
                producer.register(f"reader-{number}")
            producer.release(5, 0)
            producer.parts.master.delete_released()
            said = writer.wake()
        assert said == "", said
        state = place.parts().master.log.look()
        assert (state.last, state.total, len(state.consumers)) == (7, 10, 5)
        assert producer.parts.master.log.look() == state
        assert Reader(place).all().ids == list(range(10))

    # -- the log ------------------------------------------------------------------------------------------------------

    def test_x3_entries_count_from_zero_and_never_change(self, place: Place) -> None:
        """Entries with rows, without rows, and with nothing but a barrier."""
        assert place.parts().master.log.look() == LogState()
        assert place.parts().master.describe() is None
        producer = Producer(place).claim()
        producer.register('a "reader" with %20 / = \\ ü')
        producer.run(0, 0, 10, barrier=7)
        producer.run(1, 10, 10, barrier=8)
        producer.run(2, 10, 20, tasks=2)
        state = producer.seal(3)
        log = place.parts().master.log
        assert log.look() == state
        assert state is not None and (state.last, state.total, state.sealed) == (5, 20, 5)
        assert list(state.consumers) == ['a "reader" with %20 / = \\ ü']
        found = [log.entry(number) for number in range(6)]
        assert found == [producer.parts.master.log.entry(number) for number in range(6)]
        assert [entry.kind for entry in found if entry] == [
            EntryKind.CLAIM,
            EntryKind.REGISTER,
            *[EntryKind.EPOCH] * 3,
            EntryKind.SEAL,
        ]
        assert log.entry(6) is None and log.entry(-1) is None
        reader = Reader(place).all()
        assert (reader.barriers, reader.sealed, reader.ids) == ([7, 8], True, list(range(20)))

    def test_x3_nothing_is_written_when_nothing_is_decided(self, place: Place) -> None:
        """An epoch that is there already, under whatever rows it comes again."""
        producer = Producer(place).claim()
        producer.run(0, 0, 10)
        before = producer.parts.master.log.look()
        assert producer.run(0, 50, 60) is None
        assert Producer(place).run(0, 0, 10) is None
        assert place.parts().master.log.look() == before
        assert Reader(place).all().ids == list(range(10))

    def test_x3_of_writers_that_append_at_once_none_is_lost(self, place: Place) -> None:
        """Three processes, which all decide again when another one was faster."""
        Producer(place).claim()
        with (
            Child(register_many, place, "a", 15) as one,
            Child(register_many, place, "b", 15) as two,
            Child(register_many, place, "c", 15) as three,
        ):
            for child in (one, two, three):
                said = child.wait()
                assert child.poll() == 0, said
        state = place.parts().master.log.look()
        assert (state.last, len(state.consumers)) == (45, 45)

    def test_x3_a_decision_is_made_on_the_state_it_is_written_after(self, place: Place) -> None:
        """Another entry comes between the decision and the write: it is decided again, on the state with that entry."""
        producer, other = Producer(place).claim(), Producer(place)
        seen = []

        def decide(state: LogState) -> Entry | None:
            seen.append(state.last)
            if len(seen) == 1:
                other.register("faster")
            return decisions.register_entry(state, "slow", "q", 1)

        state = producer.parts.master.log.append(decide, "1")
        assert seen == [0, 1]
        assert state is not None and list(state.consumers) == ["faster", "slow"]

    def test_x3_older_starts_are_fenced_by_number_and_random_number(self, place: Place, tmp_path: Path) -> None:
        """Frozen before its entry, it wakes up when its successor has claimed the exchange."""
        Producer(place).claim().run(0, 0, 10)
        with frozen(tmp_path, FailPoint.EXCHANGE_BEFORE_ENTRY, run_unclaimed, place, 1, 1, 10, 20) as old:
            second = Producer(place, 2).claim()
            second.run(1, 10, 20)
            assert was_fenced(said := old.wake()), said
        with pytest.raises(FencedError, match="incarnation 2"):
            Producer(place, 1).claim()
        with pytest.raises(FencedError, match="twice"):
            Producer(place, 2, start=77).claim()
        with pytest.raises(FencedError, match="twice"):
            Producer(place, 2, start=77).seal(2)
        assert place.parts().master.log.look().mark == FenceMark(2, 2000)
        assert Reader(place).all().ids == list(range(20))

    def test_x3_a_cut_hides_what_is_after_it(self, place: Place) -> None:
        """Readers pass over the abandoned entries, the seal among them; what comes later they read."""
        producer = Producer(place).claim()
        for epoch in range(3):
            producer.run(epoch, epoch * 10, epoch * 10 + 10)
        producer.seal(3)
        before = Reader(place)
        before.step(10)
        restored = Producer(place, 2, lineage=1)
        restored.claim()
        assert Reader(place).all().ids == [], "a new lineage starts from scratch"
        restored.run(0, 100, 110)
        restored.run(1, 110, 120)
        restored.cut(6, 10)
        restored.run(2, 200, 210)
        assert Reader(place).all().ids == [*range(100, 110), *range(200, 210)]
        assert Reader(place).all(3).ids == [*range(100, 110), *range(200, 210)]
        assert before.ids == list(range(10))
        assert place.parts().master.held().rows == 20
        restored.seal(3)
        assert Reader(place).all().sealed

    def test_x3_a_sealed_exchange_takes_no_more_rows(self, place: Place) -> None:
        """The seal itself may come again."""
        producer = Producer(place).claim()
        producer.run(0, 0, 10)
        producer.seal(1)
        assert producer.seal(1) is None
        with pytest.raises(StateError, match="sealed"):
            producer.run(1, 10, 20)
        assert Reader(place).all().ids == list(range(10))

    def test_x3_what_dead_starts_have_stored_is_swept(self, place: Place) -> None:
        """Not what an entry names, and not what the newest start has stored."""
        first = Producer(place).claim()
        first.run(0, 0, 10)
        first.write(1, numbered(10, 20))
        second = Producer(place, 2)
        mine = second.write(1, numbered(10, 20))
        assert place.holds(3)
        second.claim()
        assert place.holds(2, unnamed=1)
        second.commit(1, [mine])
        Producer(place, 3).claim()
        assert place.holds(2, unnamed=1)
        assert Reader(place).all().ids == list(range(20))

    def test_x3_an_exchange_that_is_deleted_under_its_job_is_noticed(self, place: Place) -> None:
        """Nothing is written into its place, nor into that of the one that is created again there.

        Rows may be refused before their entry is.
        """
        producer = Producer(place).claim()
        producer.run(0, 0, 10)
        shutil.rmtree(place.path)
        with pytest.raises((StateError, OSError), match=r"not the target that was claimed|no exchange found"):
            producer.run(1, 10, 20)
        shutil.rmtree(place.path, ignore_errors=True)  # the attempt may have left a folder
        Producer(place, 2).claim()
        with pytest.raises((StateError, FencedError)):
            producer.run(1, 10, 20)
        assert Reader(place).all().ids == []

    # -- what it is ---------------------------------------------------------------------------------------------------

    def test_x3_it_is_described_before_its_first_entry(self, place: Place) -> None:
        """The first writer makes it; what may change is changed, and everything else is refused by name."""
        made = place.parts().master.register(place.descriptor())
        assert place.parts().master.describe() == made
        assert place.parts().master.log.look() == LogState()
        later = place.parts().master.register(place.descriptor(max_in_flight=5, keep=7))
        assert (later.id, later.max_in_flight, later.keep) == (made.id, 5, 7)
        assert place.parts().master.describe() == later
        for changes in ({"partitions": 4}, {"key": ()}, {"job_id": "job-2"}):
            with pytest.raises(ConfigurationError):
                place.parts().master.register(place.descriptor(**changes))
        with pytest.raises(ConfigurationError, match="column 'more' of the exchange is missing"):
            schema = type(ROWS)([*ROWS.fields]).add("more", "integer")
            place.parts().master.register(place.descriptor(schema=schema))
        assert place.parts().master.held() == Held(0, 0, 0, (), False)

    def test_x3_something_else_in_its_place_is_refused(self, place: Place) -> None:
        """It is left as it is."""
        file = Path(place.path) / "notes.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
        with pytest.raises(StateError, match=r"notes\.txt"):
            place.parts().master.describe()
        with pytest.raises(StateError, match=r"notes\.txt"):
            place.parts().master.register(place.descriptor())
        assert [one.name for one in file.parent.iterdir()] == ["notes.txt"]

    def test_x3_an_exchange_of_another_kind_is_refused(self, place: Place) -> None:
        """It is neither read nor written, and stays what it is."""
        made = place.parts().master.register(place.descriptor())
        Producer(place).claim().run(0, 0, 10)
        for other in ("arrow", "delta"):
            if other != place.kind:
                with pytest.raises(StateError, match="and no "):
                    Place(other, place.path).parts().master.describe()
                with pytest.raises(StateError, match="and no "):
                    Producer(Place(other, place.path)).claim()
        assert place.parts().master.describe() == made
        assert Reader(place).all().ids == list(range(10))

    # -- rows: what comes back, in which order, in how many tasks -----------------------------------------------------

    def test_x3_a_piece_is_read_from_any_row_to_any_other(self, place: Place) -> None:
        """Over the borders of batches; by partition, in the order in which they were written."""
        producer = Producer(place).claim()
        batch = numbered(0, 5000)
        segment = producer.write(0, batch, targets=[one % 2 for one in range(5000)])
        assert segment is not None
        runs = [run for run in segment.runs if run.partition == 1]
        expected = list(range(1, 5000, 2))
        assert sum(run.rows for run in runs) == len(expected)
        for skip, rows in ((0, 2500), (0, 1), (2499, 1), (700, 1100), (1250, 1)):
            found: list[int] = []
            passed = 0
            for run in runs:
                left = max(0, skip - passed)
                if left < run.rows and rows > len(found):
                    piece = Piece(segment.name, run.first, run.batches, left, min(run.rows - left, rows - len(found)))
                    for part in producer.parts.reader.read(piece):
                        found += part.column("id").to_pylist()
                passed += run.rows
            assert found == expected[skip : skip + rows]

    def test_x3_nulls_and_empty_tasks(self, place: Place) -> None:
        """A task without rows stores nothing; nulls come back as nulls."""
        producer = Producer(place).claim()
        assert producer.write(0, numbered(0, 0)) is None
        nulls = pa.RecordBatch.from_pydict({"id": pa.array([None, 1], pa.int64()), "name": pa.array([None, "ü"])})
        segment = producer.write(0, nulls, targets=[2, 2])
        assert segment is not None
        producer.commit(0, [segment])
        reader = Reader(place).all()
        assert reader.rows == {0: [], 1: [], 2: [None, 1]}

    def test_x3_a_segment_that_is_damaged_or_missing_is_an_error(self, place: Place) -> None:
        """A missing one may come back, with its storage; it is not taken for one without rows."""
        producer = Producer(place).claim()
        segment = producer.write(0, numbered(0, 10))
        assert segment is not None
        producer.commit(0, [segment])
        if place.damageable:
            place.damage(segment.name)
            with pytest.raises(StateError, match=f"{segment.name} is damaged"):
                Reader(place).all()
        place.lose(segment.name)
        with pytest.raises((OSError, StorageError, StateError)):
            Reader(place).all()

    def test_x3_every_type_comes_back_as_it_was(self, place: Place) -> None:
        """The Arrow types of the batches included, with extreme values and nulls."""
        place.parts().master.register(place.descriptor(schema=every_type.EVERY_TYPE))
        schema = arrow_schema(every_type.EVERY_TYPE)
        rows = [*(every_type.row(number) for number in range(1, 400, 7)), every_type.empty(-1)]
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        whose = Task("flights", "q", 0, 0, 0, 1, 0)
        segment = place.parts().writer.write(iter([(batch, [1] * len(rows))]), whose, 3)
        assert segment is not None
        (run,) = segment.runs
        piece = Piece(segment.name, run.first, run.batches, 0, len(rows))
        assert pa.Table.from_batches(place.parts().reader.read(piece)) == pa.Table.from_batches([batch])

    @pytest.mark.parametrize(("tasks", "readers", "most"), [(1, 5, None), (5, 1, 7), (4, 2, 1), (3, 3, 100)])
    def test_x4_producer_and_consumer_have_unequal_numbers_of_tasks(
        self, place: Place, tasks: int, readers: int, most: int | None
    ) -> None:
        """Each partition has its rows in order, whatever the limit of an epoch; nothing is distributed again."""
        producer = Producer(place, partitions=4).claim()
        producer.run(0, 0, 40, tasks=tasks)
        producer.run(1, 40, 60, tasks=1)
        producer.seal(2)
        reader = Reader(place, readers).all(most)
        assert reader.rows == {part: list(range(part, 60, 4)) for part in range(4)}
        assert reader.sealed


def _entries(place: Place) -> list[Entry]:
    """All entries that are not released."""
    log = place.parts().master.log
    state = log.look()
    found = [log.entry(number) for number in range(state.released, state.last + 1)]
    return [entry for entry in found if entry is not None]
