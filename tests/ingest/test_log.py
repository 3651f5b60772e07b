"""The log of a gateway: claims, late writers, released entries, and how far a reader may read."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.errors import FencedError, OffsetError, StateError
from spark_ext.ingest.forms import explode
from spark_ext.ingest.log import (
    ABOUT,
    LEASE,
    Entry,
    EntryKind,
    InboxLog,
    LogState,
    Step,
    advance,
    channels,
    lease_of,
    pieces,
)
from spark_ext.ingest.store import GatewayStore
from spark_ext.storage import LocalFolder
from tests.ingest.ingest_kit import World, request


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "g1")


def log(folder: LocalFolder) -> InboxLog:
    return InboxLog(folder, "gateway 'g1'")


def claim(on: InboxLog, start: str) -> LogState:
    state = on.look()
    return on.append(replace(after(state), kind=EntryKind.CLAIM, start=start, incarnation=state.incarnation + 1), state)


def after(state: LogState, rows: int = 0) -> Entry:
    """The next entry of a log's owner."""
    name = f"{state.last + 1:020}-{state.start}.arrow" if rows else ""
    total, stored = state.total + rows, state.stored + 10 * rows
    entry = Entry(EntryKind.SEGMENT, state.start, state.incarnation, total=total, stored=stored, name=name)
    return replace(entry, rows=rows, bytes=10 * rows)


def test_the_newest_entry_says_it_all(folder: LocalFolder) -> None:
    owner, reader = log(folder), log(folder)
    assert reader.look() == LogState()
    state = claim(owner, "one")
    state = owner.append(replace(after(state, 3), wal=7), state)
    seen = reader.look()
    assert seen == log(folder).look() == state
    assert (seen.last, seen.incarnation, seen.start, seen.total, seen.wal, seen.sealed) == (1, 1, "one", 3, 7, None)
    sealed = owner.append(replace(after(state), kind=EntryKind.SEAL, lost_after=2), state)
    assert (reader.look().sealed, reader.look().lost_after) == (2, 2)
    assert reader.look() == sealed


def test_an_older_process_is_fenced_by_a_claim(folder: LocalFolder) -> None:
    old, new = log(folder), log(folder)
    state = claim(old, "old")
    assert not old.overtaken(state)
    claim(new, "new")
    assert old.overtaken(state)
    with pytest.raises(FencedError, match="incarnation 2 of the gateway has claimed its log; this process has incarn"):
        old.append(after(state, 1), state)
    assert log(folder).look().start == "new"


def test_an_append_whose_answer_was_lost_is_repeated(folder: LocalFolder) -> None:
    owner = log(folder)
    state = claim(owner, "one")
    create = LocalFolder.create_once

    def lost(*args: object, **kwargs: object) -> bool:
        create(*args, **kwargs)  # type: ignore[arg-type]
        raise OSError("no answer")

    with patch.object(LocalFolder, "create_once", lost), pytest.raises(OSError, match="no answer"):
        owner.append(after(state, 1), state)
    assert not owner.overtaken(state), "it is its own entry"
    state = owner.append(after(state, 1), state)
    assert (state.last, state.total) == (1, 1)


def released_by_another(folder: LocalFolder, entries: int) -> LogState:
    """A newer process has claimed the log, added to it, and deleted what readers released."""
    new = log(folder)
    state = claim(new, "new")
    for _ in range(entries):
        state = new.append(after(state, 1), state)
    new.release(state.last)
    new.delete(new.released())
    return state


@pytest.mark.parametrize("entries", [1, 2, 5])
def test_what_a_frozen_process_writes_under_a_deleted_number_does_not_count(folder: LocalFolder, entries: int) -> None:
    old, reader = log(folder), log(folder)
    state = claim(old, "old")
    reader.look()
    newest = released_by_another(folder, entries)
    assert not folder.has("log/00000000000000000001.json")
    with pytest.raises(FencedError):
        old.append(after(state, 1), state)
    assert old.overtaken(state), "its own late entry does not hide the claim"
    for one in reader, log(folder):
        assert one.look() == newest


def test_a_late_entry_that_comes_while_a_reader_looks_is_not_read(folder: LocalFolder) -> None:
    old = log(folder)
    state = claim(old, "old")
    newest: list[LogState] = []

    class Slow(LocalFolder):
        def find(self, name: str) -> bytes | None:
            if name.endswith("1.json") and not newest:
                newest.append(released_by_another(folder, 3))
                with pytest.raises(FencedError):
                    old.append(after(state, 7), state)
            return super().find(name)

    reader = log(Slow(folder.path))
    assert reader.look() == newest[0]


def test_a_process_that_froze_before_the_first_claim_is_fenced_too(folder: LocalFolder) -> None:
    old = log(folder)
    state = old.look()
    newest = released_by_another(folder, 3)
    first = Entry(EntryKind.CLAIM, "old", 1)
    with pytest.raises(FencedError):
        old.append(first, state)
    assert log(folder).look() == newest


def test_the_newest_entry_is_never_deleted(folder: LocalFolder) -> None:
    owner = log(folder)
    state = claim(owner, "one")
    state = owner.append(after(state, 2), state)
    owner.release(99)
    owner.delete(99)
    assert owner.numbers() == [1] and owner.released() == 99
    assert log(folder).look().total == 2


def test_a_release_that_a_power_failure_has_cut_off_releases_nothing(folder: LocalFolder) -> None:
    folder.write("released.json", "")
    assert log(folder).released() == 0


@pytest.mark.parametrize(("content", "says"), [("", "damaged"), ("[]", "damaged"), ('{"version": 9}', "version 9")])
def test_an_entry_that_cannot_be_read_is_refused_by_name(folder: LocalFolder, content: str, says: str) -> None:
    folder.write("log/00000000000000000000.json", content)
    with pytest.raises(StateError, match=says) as refusal:
        log(folder).look()
    assert refusal.value.operator == "gateway 'g1', entry 0"


def test_a_segment_that_is_gone_or_damaged_is_refused_by_name(folder: LocalFolder) -> None:
    owner = log(folder)
    batch = explode([request("a"), request("b")], "inbox", 0)
    name, size = owner.write_segment(7, "start", batch)
    assert owner.read_segment(name, 1, 1) == batch.slice(1, 1)
    content = folder.read(f"data/{name}")
    for damaged in (content.replace(b"ab", b"ac"), content[: size // 2], b"", None):
        folder.delete(f"data/{name}") if damaged is None else folder.write(f"data/{name}", damaged)
        with pytest.raises(StateError, match=f"the segment {name} is damaged or missing"):
            owner.read_segment(name, 0, 1)


def test_gateways_and_their_leases_are_found(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert channels(world.inbox) == {}
    store = GatewayStore(world.description, world.inbox, world.wal, "g1")
    store.open()
    store.close()
    (name, identity), *_ = channels(world.inbox).items()
    about = json.loads(world.inbox.read("gateways/g1/gateway.json"))
    assert (name, identity) == ("g1", about["id"])
    lease = lease_of(world.inbox.below("gateways/g1"))
    assert lease is not None and (lease.state, lease.incarnation) == ("closed", 1)
    gateway = world.inbox.below("gateways/g1")
    gateway.write(LEASE, json.dumps({**asdict(lease), "of a newer release": 1}))
    assert lease_of(gateway) == lease
    for content in ("", "[]", "{}"):
        gateway.write(LEASE, content)
        assert lease_of(gateway) is None
    gateway.write(ABOUT, "{")
    with pytest.raises(StateError, match="its description is damaged") as refused:
        channels(world.inbox)
    assert refused.value.operator == "gateway 'g1'"


# -- positions --------------------------------------------------------------------------------------------------------


def history(rows: list[int], *, sealed: bool = False) -> tuple[list[Entry], LogState]:
    """Entries with these rows, claims where they have none, and the state behind them."""
    entries: list[Entry] = []
    state = LogState(start="one")
    for count in rows:
        entry = after(state, count)
        entries.append(entry if count else replace(entry, kind=EntryKind.CLAIM))
        state = state.after(entries[-1])
    if sealed:
        entries.append(replace(after(state), kind=EntryKind.SEAL))
        state = state.after(entries[-1])
    return entries, state


ROWS = st.lists(st.integers(0, 9), min_size=1, max_size=8)
LIMIT = st.one_of(st.none(), st.integers(1, 12))


@given(ROWS, st.booleans(), st.lists(st.tuples(LIMIT, LIMIT), min_size=1, max_size=4))
def test_epochs_read_each_row_once_up_to_the_seal(
    rows: list[int], sealed: bool, limits: list[tuple[int | None, int | None]]
) -> None:
    entries, state = history(rows, sealed=sealed)
    at = dict(enumerate(entries)).get
    read: list[int] = []
    position, step = [0, 0], Step([0, 0])
    for turn in range(sum(rows) + 2):
        most, size = limits[turn % len(limits)]
        step = advance(state, at, position, most, None if size is None else size * 10)
        assert step.rows <= min(most or 99, size or 99)
        assert step.rows == sum(count for *_, count in pieces(at, position, step.position))
        for name, skip, count in pieces(at, position, step.position):
            first = entries[int(name[:20])].first + skip
            read += range(first, first + count)
        position = step.position
        if step.sealed or not step.rows:
            break
    assert read == list(range(sum(rows)))
    assert step.sealed == sealed and (step.position == [len(entries), 0] or not sealed)


def test_a_claim_makes_no_epoch() -> None:
    entries, state = history([0, 0])
    assert advance(state, dict(enumerate(entries)).get, [0, 0], 5, 5) == Step([0, 0])


def test_a_position_whose_entry_is_gone_is_refused() -> None:
    _, state = history([1, 1])
    with pytest.raises(OffsetError, match="entry 0 of the gateway's log is not there"):
        advance(state, lambda _: None, [0, 0], None, None)
