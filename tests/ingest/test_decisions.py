"""Which events are repeats: over random histories with kills at each step, what a dictionary would say."""

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext import failpoints
from spark_ext.errors import StateError, StorageError
from spark_ext.failpoints import FailPoint
from spark_ext.ingest import parts as stored
from spark_ext.ingest.decisions import Decisions, NewEntry
from spark_ext.ingest.parts import Part, Skips, Span, outermost
from spark_ext.ingest.seen import MOST_RANGES, SeenNumbers
from spark_ext.storage import Folder, LocalFolder, folder_at
from tests.servers.object_store import Bucket
from tests.support.recording import Recording

WINDOW = 10  # s
WHO = "inbox 'orders'"


class Event(NamedTuple):
    identity: str | None
    body: int = 0
    at: float = 1000.0
    producer: str | None = None
    number: int | None = None
    old: bool = False


def entry(gateway: str, number: int, events: Sequence[Event]) -> NewEntry:
    hashes = [event.identity and hashlib.blake2b(event.identity.encode(), digest_size=16).digest() for event in events]
    return NewEntry(
        gateway,
        number,
        pa.array(hashes, pa.binary(16)),
        pa.array([event.identity and event.body for event in events], pa.uint32()),
        pa.array([event.producer for event in events], pa.string()),
        pa.array([event.number for event in events], pa.int64()),
        pa.array([round(event.at * 1e6) for event in events], pa.timestamp("us", "UTC")),
        pa.array([event.old for event in events], pa.bool_()),
    )


def entry_of(gateway: str, number: int, *identities: str, at: float = 1000.0) -> NewEntry:
    return entry(gateway, number, [Event(one, at=at) for one in identities])


def parts_of(folder: Folder) -> list[Part]:
    return [Part.decode(folder.mapped(span.name), span, WHO) for span in outermost(folder.names())[0]]


def opened(folder: Folder, window: int = WINDOW) -> Decisions:
    return Decisions(folder, window * 1000, WHO)


class Oracle:
    """What is a repeat, event by event."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, int]] = {}
        self.numbers: dict[str, set[int]] = {}

    def decide(self, events: Sequence[Event]) -> Skips:
        reasons = [self._reason(event) for event in events]
        return Skips(
            *(tuple(at for at, one in enumerate(reasons) if one == reason) for reason in ("repeat", "conflict"))
        )

    def _reason(self, event: Event) -> str:
        if event.producer is not None and event.number is not None:
            if event.number in self.numbers.setdefault(event.producer, set()):
                return "repeat"
            self.numbers[event.producer].add(event.number)
        if event.identity is not None:
            at, body = self.seen.get(event.identity, (-(10**9), 0))
            if int(event.at) - at <= WINDOW:
                return "repeat" if body == event.body else "conflict"
            self.seen[event.identity] = (int(event.at), event.body)
        return ""


class Killed(BaseException):
    pass


class Shaky(LocalFolder):
    """A folder in memory, for planners that are killed, disturbed or refused at any step."""

    def __init__(self, decided: Callable[[Part], None]) -> None:
        super().__init__(Path("memory"))
        self.content: dict[str, bytes] = {}
        self.decided = decided
        self.steps: Iterator[Callable[[Callable[[], Any]], Any]] = iter(())

    def _step(self, act: Callable[[], Any]) -> Any:
        disturbance = next(self.steps, None)
        return act() if disturbance is None else disturbance(act)

    def names(self, under: str = "") -> list[str]:
        return [*self._step(lambda: [*self.content])]

    def open_input(self, name: str) -> pa.NativeFile:
        return pa.BufferReader(self.mapped(name))

    def mapped(self, name: str) -> pa.Buffer:
        def read() -> pa.Buffer:
            if name not in self.content:
                raise FileNotFoundError(name)
            return pa.py_buffer(self.content[name])

        return self._step(read)

    def create_once(self, name: str, content: bytes | str, *, durable: bool = False, writer: str = "") -> bool:
        def create() -> bool:
            assert durable
            assert isinstance(content, bytes)
            if name in self.content:
                return False
            self.content[name] = content
            (span,), _ = outermost([name])
            if span.end == span.begin + 1 and span in outermost(self.content)[0]:
                self.decided(Part.decode(pa.py_buffer(content), span, WHO))
            return True

        return bool(self._step(create))

    def write(self, name: str, content: bytes | str, **_: Any) -> None:
        assert isinstance(content, bytes)
        self._step(lambda: self.content.__setitem__(name, content))

    def delete(self, name: str) -> None:
        self._step(lambda: self.content.pop(name, None))

    def sync(self, name: str) -> None:
        self._step(lambda: None)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([*"abcde", None]),
        st.sampled_from([0, 0, 0, 1]),
        st.integers(-WINDOW, 0),
        st.sampled_from([None, None, "p", "q"]),
        st.integers(0, 9),
    ),
    max_size=4,
)
HISTORIES = st.lists(
    st.tuples(
        st.integers(0, 1),  # the planner
        st.lists(st.tuples(st.sampled_from("gh"), EVENTS), min_size=1, max_size=2),  # entries that it covers
        st.sampled_from([0, 0, 1, WINDOW, 3 * WINDOW]),  # how far the clock moves first
        st.sampled_from(["", "", "killed", "killed after", "refused", "lost", "other", "other often", "deleted"]),
        st.integers(0, 9),  # the step at which that happens
    ),
    min_size=1,
    max_size=24,
)


class History:
    """Two planners that share a folder, and nothing else."""

    def __init__(self) -> None:
        self.oracle, self.events, self.expected = Oracle(), dict[tuple[str, int], list[Event]](), dict[Any, Skips]()
        self.floors, self.now = {"g": 0, "h": 0}, 1000
        self.folder = Shaky(self._decided)
        self.planners = [opened(self.folder), opened(self.folder)]

    def _decided(self, part: Part) -> None:
        for key in part.skips:
            assert key not in self.expected, "an entry is decided once"
            self.expected[key] = self.oracle.decide(self.events[key])

    def add(self, gateway: str, drawn: Sequence[Any]) -> NewEntry:
        number = sum(1 for name, _ in self.events if name == gateway)
        events = [
            # One that is silent for two windows may be forgotten.
            Event(identity, body, self.now + delta, producer and f"{producer}{self.now // WINDOW}", sequence)
            for identity, body, delta, producer, sequence in drawn
        ]
        self.events[gateway, number] = events
        return entry(gateway, number, events)

    def every(self) -> list[NewEntry]:
        return [entry(*key, events) for key, events in self.events.items()]

    def disturb(self, which: int, kind: str, at: int) -> None:
        def act(step: Callable[[], Any]) -> Any:
            if kind.startswith("killed"):
                if kind == "killed after":
                    step()
                raise Killed
            if kind == "refused":
                raise OSError("the storage does not answer")
            if kind.startswith("other"):
                for _ in range(9 if kind == "other often" else 1):
                    self.planners[1 - which].cover([self.add("g", [("a", 0, 0, None, 0)])])
            answer = step()
            return False if kind == "lost" and answer is True else answer

        self.folder.steps = iter([lambda step: step()] * at + [act])

    def check(self, planner: Decisions) -> None:
        for (gateway, number), skips in self.expected.items():
            if number >= self.floors[gateway]:
                assert planner.skips(gateway, number) == skips
        for name in (f"{producer}{self.now // WINDOW}" for producer in "pq"):
            assert all(one in SeenNumbers(*planner._numbers(name)) for one in self.oracle.numbers.get(name, ()))


@settings(max_examples=40, deadline=None)
@given(HISTORIES, st.sampled_from([2, 8]), st.sampled_from([4, 1 << 20]))
def test_a_history_has_the_decisions_of_a_dictionary(history: list[Any], fan: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "FAN", fan)
        patch.setattr(stored, "MOST", most)
        run = History()
        for which, drawn, moved, kind, at in history:
            left = [one for one in run.every() if one[:2] not in run.expected]
            run.now += (
                0 if left else moved
            )  # what is read later than two windows after others is not promised to be exact
            wanted = [*left, *(run.add(*one) for one in drawn)]
            if kind == "deleted" and not left:
                gateway = drawn[0][0]
                run.floors[gateway] = max(0, sum(1 for name, _ in run.expected if name == gateway) - 1)
                run.planners[which].delete_below(gateway, run.floors[gateway])
                wanted = run.every()  # of the deleted ones too
            elif kind:
                run.disturb(which, kind, at)
            try:
                run.planners[which].cover(wanted)
                assert all((one.gateway, one.number) in run.expected for one in wanted)
            except Killed:
                run.planners[which] = opened(run.folder)
            except OSError:
                pass
            run.folder.steps = iter(())
        for planner in run.planners:
            planner.cover(run.every())
        for planner in (*run.planners, opened(run.folder)):
            run.check(planner)
        if run.expected:
            file = parts_of(run.folder)[-1]
            found = [sum(len(one[at]) for one in run.expected.values()) for at in (0, 1)]
            assert file.found == (*found, 0), "the newest file knows"


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "decisions")


class TestWhatIsARepeat:
    def decide(self, folder: Folder, *entries: NewEntry, window: int = WINDOW) -> list[Skips]:
        planner = opened(folder, window)
        planner.cover(entries)
        return [planner.skips(one.gateway, one.number) for one in entries]

    def test_within_an_entry_and_between_gateways_the_first_counts(self, folder: Folder) -> None:
        found = self.decide(folder, entry_of("h", 0, "a", "b", "a"), entry_of("g", 0, "b", "c"), entry_of("g", 1, "c"))
        assert found == [Skips((2,)), Skips((0,)), Skips((0,))]

    def test_an_entry_that_is_given_twice_is_decided_once(self, folder: Folder) -> None:
        assert self.decide(folder, *[entry_of("g", 0, "a")] * 2) == [Skips(), Skips()]

    def test_another_body_is_a_conflict_and_the_first_stays(self, folder: Folder) -> None:
        events = [Event("a", 1), Event("a", 2), Event("a", 1)]
        events.append(Event("b", old=True))
        assert self.decide(folder, entry("g", 0, events), entry("h", 0, events[3:])) == [Skips((2,), (1,)), Skips((0,))]
        assert parts_of(folder)[-1].found == (2, 1, 1)
        assert self.decide(folder, entry("g", 1, events[1:3])) == [Skips((1,), (0,))]

    def test_an_identity_is_new_again_after_the_window(self, folder: Folder) -> None:
        assert self.decide(folder, entry_of("g", 0, "a")) == [Skips()]
        assert self.decide(folder, entry_of("g", 1, "a", at=1010)) == [Skips((0,))], "a repeat does not prolong it"
        assert self.decide(folder, entry_of("g", 2, "a", at=1011)) == [Skips()]
        assert self.decide(folder, entry_of("g", 3, "a", at=1021)) == [Skips((0,))]

    def test_the_window_may_end_within_an_entry(self, folder: Folder) -> None:
        times = (1000, 1011, 1012, 1022, 1021)
        assert self.decide(folder, entry("g", 0, [Event("a", at=at) for at in times])) == [Skips((2, 4))]
        assert self.decide(folder, entry_of("g", 1, "a", at=1032)) == [Skips((0,))]

    def test_a_clock_that_goes_back_an_hour_makes_nothing_new(self, folder: Folder) -> None:
        later = [entry_of("g", number, f"{number}", at=9000 + number) for number in range(16)]
        self.decide(folder, entry_of("h", 0, "a", at=8999), *later, window=7200)
        assert self.decide(folder, entry_of("h", 1, "a", "1", at=5400), window=7200) == [Skips((0, 1))]

    def test_a_producers_number_counts_once_in_any_order(self, folder: Folder) -> None:
        numbers = [(0, "p"), (5, "p"), (0, "q"), (5, "p"), (3, "p"), (6, "p"), (None, "p"), (1, None)]
        events = [Event(None, producer=producer, number=number) for number, producer in numbers]
        assert self.decide(folder, entry("g", 0, events), entry("h", 0, events[4:6])) == [Skips((3,)), Skips((0, 1))]

    def test_a_number_below_too_many_gaps_is_no_repeat_that_nobody_sees(self, folder: Folder) -> None:
        most = 2 * MOST_RANGES
        sent = [Event(None, producer="p", number=number) for number in range(0, most + 2, 2)]
        late = [Event(None, producer="p", number=number) for number in (0, 1, 3, 3, most, most - 1)]
        assert self.decide(folder, entry("g", 0, sent), entry("h", 0, late)) == [Skips(), Skips((3, 4), (0,))]


class TestFiles:
    def test_a_decision_is_durable_when_it_was_made(self, tmp_path: Path) -> None:
        folder = Recording(tmp_path / "d")
        opened(folder).cover([entry_of("g", 0, "a")])
        assert folder.noted() == ["sync .", "sync draft", f"link d/{Span(0, 1).name}", "sync d"]
        late = opened(folder)
        late.skips("g", 0)
        late.cover([entry_of("g", 0, "a")])
        assert folder.noted() == [f"sync d/{Span(0, 1).name}", "sync d"], "its maker may have been killed before"
        late.cover([entry_of("g", 0, "a")])
        assert folder.noted() == []
        late.cover([entry_of("g", 1, "a")])
        opened(folder).cover([entry_of("g", 2, "a")])
        folder.noted()
        late.cover([entry_of("g", 2, "a")])
        assert folder.noted() == ["sync draft", f"sync d/{Span(2, 3).name}", "sync d"], "it was slower"

    @pytest.mark.parametrize("point", [one for one in FailPoint if one.startswith("decisions.")])
    def test_a_planner_that_fails_at_a_point_leaves_what_the_next_one_repeats(
        self, folder: LocalFolder, monkeypatch: pytest.MonkeyPatch, point: FailPoint
    ) -> None:
        entries = [entry_of("g", number, f"{number}", "a") for number in range(8)]
        for one in entries[:7]:
            opened(folder).cover([one])
        failpoints._passed.clear()
        monkeypatch.setenv(failpoints.VARIABLE, f"{point}=raise")
        failed = opened(folder)
        if "merge" in point:
            failed.cover(entries)
            assert len(folder.names()) == 8 + (point is FailPoint.DECISIONS_MERGED)
        else:
            with pytest.raises(OSError, match=str(point)):
                failed.cover(entries)
        for planner in failed, opened(folder):
            planner.cover(entries)
            planner.cover([entry_of("h", 0, "0")])
            assert [planner.skips("g", number).repeats for number in range(8)] == [(), *[(1,)] * 7]
            assert planner.skips("h", 0) == Skips((0,))
        assert sorted(folder.names()) == [Span(0, 8).name, Span(8, 9).name]

    def test_a_missing_file_is_refused_by_its_number(self, folder: LocalFolder) -> None:
        planner = opened(folder)
        for number in range(10):
            planner.cover([entry_of("g", number, "a")])
        folder.delete(Span(8, 9).name)
        for one in planner, opened(folder):
            with pytest.raises(StateError, match=r"decision 8 is missing") as refused:
                one.skips("g", 99)
            assert refused.value.operator == WHO
        folder.delete(Span(9, 10).name)
        with pytest.raises(StateError, match=r"decision 8 is missing"):
            planner.skips("g", 99)

    def test_a_damaged_file_is_refused_by_its_name(self, folder: LocalFolder) -> None:
        opened(folder).cover([entry_of("g", 0, "a")])
        name = Span(0, 1).name
        for content in (folder.read(name)[:-1], b""):
            folder.write(name, content)
            with pytest.raises(StateError, match=f"{name} of its decisions is damaged"):
                opened(folder).cover([entry_of("g", 0, "a")])

    def test_a_task_reads_no_identities_and_a_planner_checks_them(self, folder: LocalFolder) -> None:
        opened(folder).cover([entry_of("g", 0, "a", "a")])
        name = Span(0, 1).name
        folder.write(name, folder.read(name)[:-1] + b"?")
        planner = opened(folder)
        assert planner.skips("g", 0) == Skips((1,))
        for _ in range(2):
            with pytest.raises(StateError, match=f"{name} of its decisions is damaged"):
                planner.cover([entry_of("g", 1, "a")])

    def test_files_of_forgotten_identities_become_small_and_their_decisions_stay(self, folder: LocalFolder) -> None:
        planner = opened(folder)
        planner.cover([entry_of("g", 0, *map(str, range(1000)), "1")])
        before = len(folder.read(Span(0, 1).name))
        planner.cover([entry_of("g", 1, "b", at=1000 + 2 * WINDOW + 1)])
        assert len(folder.read(Span(0, 1).name)) < before / 20
        for one in planner, opened(folder):
            assert one.skips("g", 0) == Skips((1000,))
        assert [len(part.identities) for part in parts_of(folder)] == [0, 1]

    def test_a_clock_that_is_years_ahead_makes_nothing_forgotten(self, folder: LocalFolder) -> None:
        planner, now = opened(folder), time.time()
        planner.cover([entry_of("g", 0, "a", at=now)])
        planner.cover([entry_of("g", 1, "b", at=now + 1e9)])
        planner.cover([entry_of("g", 2, "a", at=now + 1)])
        assert planner.skips("g", 2) == Skips((0,))

    def test_what_the_log_has_deleted_is_forgotten_and_not_decided_again(self, folder: LocalFolder) -> None:
        planner = opened(folder)
        for number in range(7):
            planner.cover([entry_of("g", number, "a")])
        planner.delete_below("g", 5)
        planner.cover([entry_of("h", 0, "b")])  # the eighth, with which they are merged
        for one in planner, opened(folder):
            one.cover([entry_of("g", 0, "a")])
            with pytest.raises(KeyError):
                one.skips("g", 0)
            assert one.skips("g", 5) == Skips((0,))
        assert folder.names() == [Span(0, 8).name]

    def test_a_silent_producer_is_forgotten_after_two_windows(self, folder: LocalFolder) -> None:
        planner = opened(folder)
        for number, at in enumerate((1000, 1000 + WINDOW, *[1001 + 2 * WINDOW] * 6)):
            planner.cover([entry("g", number, [Event(None, at=at, producer="pq"[number > 0], number=number)])])
        (merged,) = parts_of(folder)
        assert merged.producers == {"q": [0, 1, 8]}

    def test_drafts_of_killed_planners_are_deleted_after_a_day(self, folder: LocalFolder) -> None:
        for name, age in ((".draft-0-a", 90_000), (".draft-0-b", 0)):
            folder.write(name, "1")
            os.utime(folder.path / name, (time.time() - age,) * 2)
        opened(folder).cover([entry_of("g", 0, "a")])
        assert sorted(folder.names()) == [".draft-0-b", Span(0, 1).name]

    def test_a_planner_that_is_always_slower_says_so(self) -> None:
        run = History()
        run.planners[0].cover([run.add("g", [])])

        def slower(step: Callable[[], Any]) -> Any:
            run.folder.steps = iter(())
            run.planners[1].cover([run.add("h", [])])
            run.folder.steps = itertools.repeat(slower)
            return step()

        run.folder.steps = itertools.repeat(slower)
        with pytest.raises(StorageError, match="other planners of the job were faster 40 times in a row"):
            run.planners[0].cover([run.add("g", [])])


def race(places: list[Folder]) -> None:
    """Planners that cover the same entries at the same time have made the same decisions."""
    planners = [opened(place) for place in places]
    entries = [entry_of("gh"[number % 2], number, f"{number}", f"{number // 3}") for number in range(30)]
    threads = [
        threading.Thread(target=lambda one=one: [one.cover(entries[: n + 1]) for n in range(30)]) for one in planners
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [[one.skips(each.gateway, each.number) for each in entries] for one in (*planners, opened(places[0]))]
    assert all(one == found[0] for one in found)
    assert sum(len(skips.repeats) for skips in found[0]) == 30


def test_planners_at_the_same_time_on_a_file_system(tmp_path: Path) -> None:
    race([LocalFolder(tmp_path / "d") for _ in range(3)])


def test_planners_at_the_same_time_in_a_store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.use(monkeypatch)
    race([folder_at(f"{bucket.uri}/state/d") for _ in range(2)])
