"""Which folders belong together, what is refused by name, and `seal` without a process."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.errors import ConfigurationError, StateError
from spark_ext.ingest.log import channels
from spark_ext.ingest.opening import seal
from spark_ext.ingest.place import InboxPlace
from tests.ingest.ingest_kit import ORDERS, World, request, unlock


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A gateway that has acknowledged `a`, which is in a segment, and `b`, which is not."""
    world = World(tmp_path)
    with world.machine():
        channel = world.open()
        channel.commit([request("a")])
        channel.settle()
        channel.commit([request("b")])
        unlock(channel)
    return world


def test_a_gateway_before_the_first_start_of_its_job_is_told_to_start_that(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the inbox does not exist") as refused:
        InboxPlace(str(tmp_path / "inboxes" / "orders"), "inbox 'orders'").description()
    assert refused.value.do.startswith("start the job first")


def test_a_start_continues_with_what_is_in_the_write_ahead_log(world: World) -> None:
    world.open().close()
    assert world.rows() == ["a", "b"]
    assert len(list((world.wal / "g1").glob("*.wal"))) == 1


def test_without_its_write_ahead_log_a_gateway_does_not_start(world: World) -> None:
    shutil.rmtree(world.wal)
    with pytest.raises(StateError, match=r"is empty, and this gateway has begun with one .*; the last .* sequence 0"):
        world.open()


def test_the_write_ahead_log_of_another_gateway_is_refused(world: World) -> None:
    world.open("g2").close()
    shutil.rmtree(world.wal / "g1")
    shutil.copytree(world.wal / "g2", world.wal / "g1")
    with pytest.raises(StateError, match="is that of another gateway"):
        world.open()
    assert list((world.wal / "g1").glob("*.wal"))


def test_a_copied_gateway_folder_is_refused_by_name(world: World) -> None:
    shutil.copytree(Path(world.inbox.uri) / "gateways/g1", Path(world.inbox.uri) / "gateways/g2")
    shutil.copytree(world.wal / "g1", world.wal / "g2")
    with pytest.raises(StateError, match=r"its folder is that of gateway 'g1' .*: it was copied"):
        world.open("g2")


def test_the_folder_of_an_inbox_that_was_deleted_is_refused(world: World) -> None:
    world.description = replace(ORDERS, id="inbox-2")
    with pytest.raises(StateError, match="of the inbox with the id inbox-1"):
        world.open()


def test_an_older_copy_of_the_write_ahead_log_is_refused(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.wal, tmp_path / "copy")
    channel = world.open()
    channel.commit([request("c")])
    channel.settle()
    channel.close()
    shutil.rmtree(world.wal)
    shutil.move(tmp_path / "copy", world.wal)
    with pytest.raises(StateError, match="one of them is a copy, or was restored from a backup"):
        world.open()


def test_an_older_copy_of_the_inbox_is_refused_though_nothing_waits(world: World, tmp_path: Path) -> None:
    inbox = Path(world.inbox.uri)
    world.open().close()
    shutil.copytree(inbox, tmp_path / "backup")
    channel = world.open()
    channel.commit([request("c")])
    channel.settle()
    channel.close()
    newer = shutil.move(inbox, tmp_path / "newer")
    shutil.copytree(tmp_path / "backup", inbox)
    with pytest.raises(StateError, match="not claimed last by a process with this write-ahead log: one of them is a"):
        world.open()
    shutil.rmtree(inbox)
    shutil.move(newer, inbox)
    world.open().close()
    assert world.rows() == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "g1~2", "ü"])
def test_a_name_that_is_no_name_of_a_folder_is_refused(world: World, name: str) -> None:
    with pytest.raises(ConfigurationError, match="other characters"):
        world.open(name)


def test_a_damaged_description_is_refused(world: World) -> None:
    (Path(world.inbox.uri) / "gateways/g1/gateway.json").write_text('{"version": 7}')
    with pytest.raises(StateError, match="another version than 1"):
        world.open()


def test_a_log_without_an_entry_is_continued_after_a_crash(tmp_path: Path) -> None:
    world = World(tmp_path)
    (world.wal / "g1").mkdir(parents=True)
    (world.wal / "g1/owner.json").write_text(json.dumps({"version": 1, "gateway": "drawn"}))
    world.open().close()
    assert channels(world.inbox) == {"g1": "drawn"}


def test_g5_seal_saves_the_tail_first(world: World) -> None:
    state = seal(ORDERS, world.inbox, world.wal, "g1", accept_loss=False)
    assert (state.total, state.sealed, state.lost_after) == (2, state.last, None)
    assert world.rows() == ["a", "b"]
    assert seal(ORDERS, world.inbox, world.wal, "g1", accept_loss=False) == state


def test_seal_without_the_volume_has_to_accept_the_loss(world: World) -> None:
    shutil.rmtree(world.wal)
    with pytest.raises(StateError, match="the last event that is saved has sequence 0"):
        seal(ORDERS, world.inbox, world.wal, "g1", accept_loss=False)
    state = seal(ORDERS, world.inbox, world.wal, "g1", accept_loss=True)
    assert (state.total, state.sealed, state.lost_after) == (1, state.last, 0)
    assert world.rows() == ["a"]


def test_accepting_a_loss_loses_nothing_that_is_there(world: World) -> None:
    state = seal(ORDERS, world.inbox, world.wal, "g1", accept_loss=True)
    assert (state.total, state.lost_after) == (2, None)


def test_accepting_a_loss_saves_what_can_be_read(world: World) -> None:
    channel = world.open()
    for body in "cde":
        channel.commit([request(body)])
    unlock(channel)
    (path,) = (world.wal / "g1").glob("*.wal")
    path.write_bytes(path.read_bytes().replace(b"}d", b"}x"))
    with pytest.raises(StateError, match="is damaged"):
        world.open()
    state = seal(ORDERS, world.inbox, world.wal, "g1", accept_loss=True)
    assert state.lost_after == state.total - 1
    assert world.rows() == ["a", "b", "c", "e"]


def test_seal_of_a_gateway_that_runs_or_is_not_there_is_refused(world: World) -> None:
    channel = world.open()
    for accept_loss in (False, True):
        with pytest.raises(StateError, match="another process"):
            seal(ORDERS, world.inbox, world.wal, "g1", accept_loss=accept_loss)
    channel.close()
    with pytest.raises(ConfigurationError, match="no gateway of this name"):
        seal(ORDERS, world.inbox, world.wal, "g7", accept_loss=True)


def test_another_acknowledgement_seals_the_channel_and_begins_the_next(world: World) -> None:
    world.description = replace(ORDERS, ack="store")
    channel = world.open()
    assert channel.name == "g1~2"
    channel.commit([request("c")])
    channel.close()
    assert world.rows() == ["a", "b"] and world.log().look().sealed is not None
    world.position, world.delivered = None, []
    assert world.rows("g1~2") == ["c"]
