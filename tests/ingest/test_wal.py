"""Frames of the write-ahead log, and what is made of files that end or break where they should not."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.errors import StateError
from spark_ext.ingest.wal import WriteAheadLog, framed, scan
from spark_ext.storage import LocalFolder
from tests.ingest.ingest_kit import request

GROUPS = st.lists(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4), min_size=1, max_size=5)


def file(groups: list[list[bytes]]) -> tuple[bytes, list[int]]:
    """The content of a file, and where each group begins."""
    parts = [framed(number * 10, group) for number, group in enumerate(groups)]
    return b"".join(parts), [sum(map(len, parts[:number])) for number in range(len(parts) + 1)]


@given(GROUPS, st.data())
def test_g4_a_file_that_is_cut_off_has_its_whole_groups(groups: list[list[bytes]], data: st.DataObject) -> None:
    content, ends = file(groups)
    cut = data.draw(st.integers(0, len(content)))
    found = scan(content[:cut])
    whole = sum(end <= cut for end in ends[1:])
    assert [list(requests) for _, requests in found.groups] == groups[:whole]
    assert [sequence for sequence, _ in found.groups] == [number * 10 for number in range(whole)]
    assert (found.end, found.torn, found.damaged) == (ends[whole], cut > ends[whole], False)


@given(GROUPS, st.data())
def test_a_changed_byte_spoils_its_group_and_is_damage_unless_it_is_in_the_last(
    groups: list[list[bytes]], data: st.DataObject
) -> None:
    content, ends = file(groups)
    place = data.draw(st.integers(0, len(content) - 1))
    spoilt = bytearray(content)
    spoilt[place] ^= data.draw(st.integers(1, 255))
    bad = sum(end <= place for end in ends[1:])
    found = scan(bytes(spoilt))
    assert [list(requests) for _, requests in found.groups] == groups[:bad] + groups[bad + 1 :]
    assert (found.end, found.torn, found.damaged) == (ends[bad], True, bad < len(groups) - 1)


@given(st.binary(max_size=200))
def test_other_bytes_are_no_group(content: bytes) -> None:
    assert scan(content).groups == ()


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "wal")


@pytest.fixture
def ahead(folder: LocalFolder) -> WriteAheadLog:
    return WriteAheadLog(folder, "gateway 'g1'")


def write(ahead: WriteAheadLog, number: int, *groups: tuple[int, list[str]]) -> Path:
    file = ahead.create(number)
    for sequence, bodies in groups:
        file.append(framed(sequence, [request(body).encode() for body in bodies]))
    file.close()
    return file.path


def read(ahead: WriteAheadLog, *, synced: bool = True) -> list[tuple[int, list[str]]]:
    found = ahead.read(ahead.numbers(), 0, synced=synced)
    return [(number, [one.body.decode() for one in requests]) for number, requests in found]


def test_a_group_whose_sync_has_failed_gives_way_to_that_of_the_next_file(ahead: WriteAheadLog) -> None:
    write(ahead, 1, (0, ["a", "b"]), (2, ["not acknowledged"]))
    write(ahead, 2)
    write(ahead, 3, (2, ["c"]))
    assert read(ahead) == [(1, ["a", "b"]), (3, ["c"])]


def test_without_a_next_file_it_stays(ahead: WriteAheadLog) -> None:
    write(ahead, 1, (0, ["a"]), (1, ["not acknowledged"]))
    write(ahead, 2)
    assert read(ahead) == [(1, ["a", "not acknowledged"])]


def test_g4_damage_in_the_middle_is_refused_by_name(ahead: WriteAheadLog) -> None:
    path = write(ahead, 1, (0, ["a"]), (1, ["b"]), (2, ["c"]))
    path.write_bytes(path.read_bytes().replace(b"b", b"x", 1))
    with pytest.raises(StateError, match=r"00001\.wal .*: the group at byte \d+ is damaged, and a good one follows it"):
        read(ahead)
    assert read(ahead, synced=False) == [(1, ["a", "c"])]


def test_a_file_that_has_lost_its_end_is_refused_by_name(ahead: WriteAheadLog) -> None:
    path = write(ahead, 1, (0, ["a"]), (1, ["b"]))
    write(ahead, 2, (2, ["c"]))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StateError, match="the next file continues with event 2, but event 1 is not there"):
        read(ahead)
    path.unlink()
    with pytest.raises(StateError, match="it continues with event 2, but event 0 is not there"):
        read(ahead)


def test_two_processes_cannot_open_one(folder: LocalFolder, ahead: WriteAheadLog) -> None:
    with pytest.raises(StateError, match="another process has opened the write-ahead log"):
        WriteAheadLog(folder, "gateway 'g1'")
    ahead.close()
    WriteAheadLog(folder, "gateway 'g1'").close()
