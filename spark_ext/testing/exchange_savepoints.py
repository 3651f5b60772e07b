"""The part of the contract of exchanges that is about savepoints: what is in flight is pinned, and put back."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_ext import failpoints
from spark_ext.errors import ConfigurationError, StateError
from spark_ext.exchange import decisions
from spark_ext.exchange.entries import Entry, EntryKind, LogState
from spark_ext.exchange.pinned import pin, put_back, read_pinned
from spark_ext.exchange.positions import Front, rows_before
from spark_ext.failpoints import FailPoint
from spark_ext.storage import move
from spark_ext.testing.children import Child, frozen, was_fenced
from spark_ext.testing.exchange_driver import WHO, Place, Producer, Reader, pin_all, put, run_unclaimed

if TYPE_CHECKING:
    from spark_ext.exchange.contract import ExchangeLog


class ExchangeSavepointContract:
    """A part of `ExchangeContract`."""

    @pytest.mark.parametrize("most", [None, 7])
    def test_x6_readers_continue_in_the_middle_of_an_entry(self, place: Place, most: int | None) -> None:
        """Those that keep their place and those that are new; the first entries are abandoned, others released."""
        Producer(place).claim().run(0, 500, 510)
        producer = Producer(place, 2, lineage=1).claim()
        for epoch in range(6):
            producer.run(epoch, epoch * 10, epoch * 10 + 10, tasks=2)
        fast, slow = Reader(place), Reader(place)
        fast.step(25), slow.step(14)
        assert (fast.front.entry, slow.front.entry) == (5, 4)
        producer.release(4, 10)
        producer.parts.master.delete_released()
        before = producer.parts.master.log.look()
        log = _replaced(place, _pinned(place, 4, 8), before.last + 1, 2)
        assert (log.total, log.released, log.released_rows, log.lineage, log.job_id) == (50, 4, 10, 2, "")
        readers = [(fast, fast.front), (slow, slow.front)]
        late = [Reader(place, at=front) for _, front in readers]
        restored = Producer(place, 3, lineage=2).claim()
        assert restored.parts.master.log.look().cuts[-1] == log.cuts[-1], "it continues"
        restored.run(0, 100, 110)
        restored.run(1, 110, 120)
        restored.seal(2)
        for reader, fresh in zip(readers, late, strict=True):
            read = [list(part) for part in reader[0].rows.values()]
            reader[0].all(most)
            fresh.all(most)
            assert reader[0].sealed and fresh.sealed
            for part in range(3):
                whole = [*range(part, 50, 3), *(one for one in range(100, 120) if one % 3 == part)]
                assert reader[0].rows[part] == whole
                assert fresh.rows[part] == whole[len(read[part]) :]
        master = place.parts().master
        held = master.held()
        assert (held.rows, held.sealed, held.consumers) == (60, True, ())
        state, entry = master.log.look(), master.log.entry
        assert rows_before(entry, state, Front(4, (0, 0, 0))) == 10
        assert rows_before(entry, state, Front(8, (0, 0, 0))) == rows_before(entry, state, Front(10, (0, 0, 0))) == 50

    def test_x6_what_was_put_back_is_released_and_swept_as_usual(self, place: Place) -> None:
        """The savepoint keeps its rows, and can be put back again."""
        producer = Producer(place).claim()
        for epoch in range(4):
            producer.run(epoch, epoch * 10, epoch * 10 + 10)
        folder = _pinned(place, 2, 4)
        _replaced(place, folder, 20, 1)
        restored = Producer(place, 2, lineage=1).claim()
        assert place.holds(2), "what entries name is not swept"
        restored.run(0, 100, 110)
        restored.release(22, 30)
        restored.parts.master.delete_released()
        assert place.holds(1)
        assert place.parts().master.log.look() == restored.parts.master.log.look()
        assert Reader(place).all().ids == list(range(100, 110))
        _replaced(place, folder, 40, 2)
        assert Reader(place).all().ids == list(range(10, 30))
        assert place.parts().master.log.look().released_rows == 10, "a consumer that begins now has missed them"

    def test_x6_a_sealed_exchange_stays_sealed(self, place: Place) -> None:
        """Whether the seal is in flight, or everybody has read it; and one that is sealed later is open again."""
        producer = Producer(place).claim()
        producer.run(0, 0, 10)
        producer.run(1, 10, 20)
        producer.seal(2)
        folders = [_pinned(place, first, end) for first, end in ((1, 4), (4, 4), (1, 3), (3, 3))]
        for number, (folder, sealed) in enumerate(zip(folders, (3, 3, None, None), strict=True)):
            state = _replaced(place, folder, 10 + number, 1 + number)
            assert (state.sealed, state.total, place.parts().master.held().sealed) == (sealed, 20, sealed is not None)
            reader = Reader(place).all(3)
            assert reader.sealed is (number == 0)
            assert reader.ids == (list(range(20)) if folder in (folders[0], folders[2]) else [])
            restored = Producer(place, 2 + number, lineage=1 + number).claim()
            if sealed is None:
                restored.run(0, 20, 30)
                assert reader.all().ids == [*([*range(20)] if number == 2 else []), *range(20, 30)]
            else:
                with pytest.raises(StateError, match="sealed"):
                    restored.run(0, 20, 30)

    def test_x6_an_exchange_is_put_back_again_and_again(self, place: Place) -> None:
        """In flight are entries that were put back before, and the numbers behind them that do not exist."""
        producer = Producer(place).claim()
        producer.run(0, 0, 10, barrier=3)
        producer.run(1, 10, 20)
        reader = Reader(place)
        reader.step(4)
        expected = 20
        for lineage in range(1, 4):
            last = place.parts().master.log.look().last
            _replaced(place, _pinned(place, 1, last + 1), last + 10, lineage)
            producer = Producer(place, 1 + lineage, lineage=lineage).claim()
            producer.cut(producer.parts.master.log.look().last, expected)
            producer.run(0, expected, expected + 10)
            expected += 10
        late = Reader(place, at=reader.front).all(3)
        assert reader.all().ids == list(range(expected))
        assert sorted(late.ids + list(range(4))) == list(range(expected))
        assert late.barriers == [], "the checkpoint of this barrier is over"

    def test_x6_an_exchange_without_anything_in_flight_is_put_back(self, place: Place) -> None:
        """One without entries, and one that was read to its end."""
        place.parts().master.register(place.descriptor())
        _replaced(place, _pinned(place, 0, 0), 5, 1)
        Producer(place, 2, lineage=1).claim().run(0, 0, 10)
        reader = Reader(place).all()
        assert reader.ids == list(range(10))
        _replaced(place, _pinned(place, 8, 8), 9, 2)
        Producer(place, 3, lineage=2).claim().run(0, 10, 20)
        assert reader.all().ids == list(range(20))

    def test_x6_a_new_job_gets_an_exchange_of_its_own(self, place: Place) -> None:
        """With the same id, as positions name it; the first one continues, and releases what it likes."""
        producer = Producer(place).claim()
        producer.run(0, 0, 10)
        producer.run(1, 10, 20)
        folder = _pinned(place, 1, 2)
        producer.release(3, 20)
        producer.parts.master.delete_released()
        other = place.at(f"{place.path}-of-job-2")
        for _ in range(2):
            put_back(folder, other.path, number=3, lineage=1, job_id="job-2", who=WHO)
        about, theirs = place.parts().master.describe(), other.parts().master.describe()
        assert about is not None and theirs is not None
        assert (theirs.id, theirs.job_id, theirs.partitions, theirs.key) == (about.id, "job-2", 3, ("id",))
        with pytest.raises(ConfigurationError, match="belongs to another job"):
            Producer(other, 2, lineage=1).claim()
        Producer(other, 1, lineage=1, job_id="job-2").claim().run(0, 100, 110)
        assert Reader(other).all().ids == [*range(10), *range(100, 110)]
        producer.run(2, 20, 30)
        assert Reader(place).all().ids == list(range(20, 30))
        with pytest.raises(StateError, match="in use"):
            put_back(folder, other.path, number=3, lineage=1, job_id="job-2", who=WHO)

    def test_x6_pinned_and_put_back_by_processes_killed_at_any_step(self, place: Place) -> None:
        """Each is repeated, and completed; the exchange that was put back has each row once."""
        producer = Producer(place).claim()
        for epoch in range(3):
            producer.run(epoch, epoch * 10, epoch * 10 + 10)
        folder, fresh = f"{place.path}-savepoint", place.at(f"{place.path}-new")
        pinning: tuple[str, ...] = (FailPoint.EXCHANGE_BEFORE_PIN, FailPoint.EXCHANGE_SEGMENT_KEPT)
        for point in (*pinning, FailPoint.EXCHANGE_PINNED):
            assert _killed_until_done(point, pin_all, place, 2, 4, folder)
        assert read_pinned(folder, WHO).log.rows == 20
        putting: list[str] = [FailPoint.EXCHANGE_BEFORE_PUT_BACK, FailPoint.EXCHANGE_BEFORE_SEED]
        for lineage, point in enumerate([*putting, FailPoint.EXCHANGE_PUT_BACK, *place.points], 1):
            killed = _killed_until_done(point, put, fresh, folder, 9, lineage)
            assert killed or point in place.points, f"{point} was not passed"
            assert Reader(fresh).all().ids == list(range(10, 30)), point
            fresh.parts().master.delete()
            shutil.rmtree(fresh.path)
        assert Reader(place).all().ids == list(range(30))

    @pytest.mark.parametrize("claimed", [False, True])
    def test_x6_a_producer_frozen_over_a_replacement_adds_nothing(
        self, place: Place, tmp_path: Path, claimed: bool
    ) -> None:
        """It has decided on its entry; the number of that is in the old log, or does not exist in the new one."""
        producer = Producer(place).claim()
        for epoch in range(3):
            producer.run(epoch, epoch * 10, epoch * 10 + 10)
        folder = _pinned(place, 2, 4)
        with frozen(tmp_path, FailPoint.EXCHANGE_BEFORE_ENTRY, run_unclaimed, place, 1, 3, 30, 40) as old:
            if claimed:
                Producer(place, 2).claim()
            _replaced(place, folder, 9, 1)
            if claimed:
                Producer(place, 2, lineage=1).claim()
            said = old.wake()
        assert was_fenced(said) if claimed else "not the target that was claimed" in said, said
        assert Reader(place).all().ids == list(range(10, 30))
        assert place.parts().master.held().rows == 20
        restored = Producer(place, 3, lineage=1).claim()
        for epoch in range(3):
            restored.run(epoch, 100 + epoch * 10, 110 + epoch * 10)
        assert Reader(place).all().ids == [*range(10, 30), *range(100, 130)]

    def test_x6_any_log_of_the_former_exchange_continues_in_the_new(self, place: Place) -> None:
        """As a reader, and as a writer whose exchange is replaced between its look and its write."""
        producer = Producer(place).claim()
        readers: list[ExchangeLog] = []
        writers: list[ExchangeLog] = []
        for epoch in range(5):
            for logs in (readers, writers):
                logs.append(place.parts().master.log)
                logs[-1].look()
            producer.run(epoch, epoch * 10, epoch * 10 + 10)
        folder = _pinned(place, 3, 5)
        numbers = iter(range(8, 100, 8))
        for writer in writers:
            seen: list[LogState] = []

            def decide(state: LogState, seen: list[LogState] = seen) -> Entry | None:
                seen.append(state)
                if len(seen) == 1:
                    number = next(numbers)
                    _replaced(place, folder, number, number)
                    return Entry(EntryKind.EPOCH, application="ghost", rows=(9, 9, 9), total=state.total + 27)
                return None

            assert writer.append(decide, "1") is None
            assert seen[1] == writer.look() == place.parts().master.log.look()
            assert seen[1].total == 40
            for reader in readers:
                assert reader.look() == seen[1]
            assert Reader(place).all().ids == list(range(20, 40))

    def test_x6_the_first_entries_are_written_once(self, place: Place) -> None:
        """Repeated it changes nothing, also later; a log with other entries is refused."""
        master = place.parts().master
        master.register(place.descriptor())
        watching = place.parts().master.log
        assert watching.look() == LogState()
        entries = {2: Entry(EntryKind.CLAIM, 1), 3: Entry(EntryKind.SEAL, 1), 9: Entry(EntryKind.CUT, 1, after=3)}
        state = LogState(last=8, released=2, sealed=3).after(entries[9])
        for _ in range(2):
            master.log.seed(state, entries, "0")
            assert master.log.look() == watching.look() == place.parts().master.log.look() == state
        found = [place.parts().master.log.entry(number) for number in range(11)]
        assert found == [None, None, entries[2], entries[3], None, None, None, None, None, entries[9], None]
        master.log.append(lambda state: decisions.register_entry(state, "in", "q", 1), "1")
        master.log.seed(state, entries, "0")
        assert master.log.look().consumers == {"in": "q"}
        with pytest.raises(StateError, match="has entries of its own"):
            place.parts().master.log.seed(state, {9: Entry(EntryKind.CUT, 2, after=3)}, "0")

    def test_x6_what_is_released_or_gone_cannot_be_pinned(self, place: Place) -> None:
        """The cut is too old; of an exchange whose released entries had no rows, nothing is missing."""
        producer = Producer(place).claim()
        for epoch in range(3):
            producer.run(epoch, epoch * 10, epoch * 10 + 10)
        producer.release(1, 0)
        producer.parts.master.delete_released()
        assert read_pinned(_pinned(place, 0, 2), WHO).log.first == 1
        for first, end in ((3, 2), (0, 6), (-1, 2)):
            with pytest.raises(ValueError, match="are wanted"):
                _pinned(place, first, end)
        producer.release(2, 10)
        with pytest.raises(FileNotFoundError, match="released"):
            _pinned(place, 1, 4)
        for name in place.stored():
            place.lose(name)
        with pytest.raises(FileNotFoundError):
            _pinned(place, 2, 4)
        Producer(place, 2, lineage=1).claim()
        with pytest.raises(FileNotFoundError, match="abandoned since"):
            _pinned(place, 2, 4)
        with pytest.raises(FileNotFoundError, match="no exchange"):
            _pinned(place.at(f"{place.path}-nowhere"), 0, 0)


def _killed_until_done(point: str, function: Callable[..., object], *given: object) -> int:
    """Run a function in processes that are killed at the first, the second, ... passage of a point; how many were."""
    killed = 0
    while True:
        with Child(function, *given, env={failpoints.VARIABLE: f"{point}=kill#{killed + 1}"}) as child:
            said = child.wait()
            if child.poll() == 0:
                return killed
            assert child.poll() == -signal.SIGKILL, said
        killed += 1


def _pinned(place: Place, first: int, end: int) -> str:
    """A savepoint of the exchange alone."""
    number = 0
    while (folder := Path(f"{place.path}-savepoint-{number}")).exists():
        number += 1
    pin(place.parts().master, place.path, first, end, str(folder))
    return str(folder)


def _replaced(place: Place, folder: str, number: int, lineage: int) -> LogState:
    """A restore in place; the state of the new log."""
    fresh = place.at(f"{place.path}-new")
    put_back(folder, fresh.path, number=number, lineage=lineage, job_id="job-1", who=WHO)
    state = fresh.parts().master.log.look()
    assert (state.last, state.lineage, state.held) == (number, lineage, None)
    move(Path(place.path), Path(f"{place.path}-before-{number}"))
    move(Path(fresh.path), Path(place.path))
    return state
