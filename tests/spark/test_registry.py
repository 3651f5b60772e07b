"""The session registry: one small file per uid, one running job per uid."""

import fcntl
import importlib.util
import json
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from spark_ext.errors import ConfigurationError, EnvironmentProblem, FencedError, StateError
from spark_ext.queries.launcher import Registrations
from spark_ext.spark.session import lag_notes, registry
from spark_ext.spark.session.lag_notes import LagNotes
from spark_ext.spark.watching.query_events import SourceReport
from tests.sources.memory import registration
from tests.support.waiting import until


def test_outside_a_job_nothing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    assert registry.folder() is None
    assert registry.lookup("s") is None
    assert registry.lookup("s", tmp_path / "never made") is None


def test_what_was_published_is_found_through_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "deep" / "registry"
    entry = registration(interval_ms=250, lineage=2)
    registry.publish([entry, replace(entry, uid="t", role="sink")], place)
    monkeypatch.setenv(registry.VARIABLE, str(place))
    assert registry.lookup("s") == entry
    assert registry.lookup("t") == replace(entry, uid="t", role="sink")
    assert sorted(path.name for path in place.iterdir()) == ["s.json", "t.json"]


@pytest.mark.parametrize("change", [{"job": "other"}, {"query": "other"}, {"job_id": "other"}])
def test_another_running_querys_uid_is_refused_without_a_write(tmp_path: Path, change: dict[str, str]) -> None:
    registry.publish([registration()], tmp_path)
    with pytest.raises(ConfigurationError, match="uid 's' is in use by query 'q' of job 'j'"):
        registry.publish([registration(uid="fresh", **change), registration(**change)], tmp_path)
    assert registry.lookup("s", tmp_path) == registration()
    assert registry.lookup("fresh", tmp_path) is None


def test_a_withdrawn_uid_is_free_again(tmp_path: Path) -> None:
    registry.publish([registration()], tmp_path)
    registry.withdraw(["s", "never published"], tmp_path)
    assert registry.lookup("s", tmp_path) is None
    registry.publish([registration(job="other")], tmp_path)


def test_an_older_incarnation_cannot_replace_or_withdraw_a_newer(tmp_path: Path) -> None:
    """Both may be in one session, when a job is taken over in a notebook."""
    older, newer = registration(incarnation=1), registration(incarnation=2)
    registry.publish([older], tmp_path)
    registry.publish([newer], tmp_path)
    with pytest.raises(FencedError, match="incarnation 2 of the job"):
        registry.publish([older], tmp_path)
    registry.withdraw(["s"], tmp_path, (older.job_id, 1))
    assert registry.lookup("s", tmp_path) == newer
    registry.withdraw(["s"], tmp_path, (newer.job_id, 2))
    assert registry.lookup("s", tmp_path) is None


@pytest.mark.parametrize("older_does", ["publish", "withdraw"])
def test_two_clients_change_registrations_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older_does: str
) -> None:
    """Over Spark Connect they are processes of their own, with locks of threads of their own."""
    spec = importlib.util.find_spec(registry.__name__)
    assert spec is not None and spec.loader is not None
    other: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    older, newer = registration(incarnation=1), registration(incarnation=2)
    if older_does == "withdraw":
        registry.publish([older], tmp_path / "registry")
    arrived, flock, lookup = threading.Event(), fcntl.flock, registry.lookup
    takes_over = threading.Thread(target=other.publish, args=([newer], tmp_path / "registry"))

    def locked(file: IO[bytes], how: int) -> None:
        arrived.set()
        flock(file, how)

    def found(uid: str, place: Path) -> registry.Registration | None:
        before = lookup(uid, place)
        monkeypatch.setattr(registry, "lookup", lookup)
        monkeypatch.setattr(other, "fcntl", SimpleNamespace(flock=locked, LOCK_EX=fcntl.LOCK_EX))
        takes_over.start()
        until(lambda: arrived.is_set() or not takes_over.is_alive(), "the other client")
        return before

    monkeypatch.setattr(registry, "lookup", found)
    if older_does == "publish":
        registry.publish([older], tmp_path / "registry")
    else:
        registry.withdraw(["s"], tmp_path / "registry", (older.job_id, 1))
    takes_over.join()
    assert registry.lookup("s", tmp_path / "registry") == newer


def test_an_operator_may_move_after_a_killed_start(tmp_path: Path) -> None:
    """Over Spark Connect the folder outlives its driver."""
    registry.publish([registration(incarnation=1, query="before")], tmp_path)
    moved = registration(incarnation=2, query="after")
    registry.publish([moved], tmp_path)
    assert registry.lookup("s", tmp_path) == moved


def test_what_earlier_starts_left_is_withdrawn_but_for_the_kept(tmp_path: Path) -> None:
    for uid, given in (("kept", {}), ("left", {}), ("new", {"incarnation": 2}), ("other", {"job_id": "other"})):
        registry.publish([registration(uid=uid, **given)], tmp_path)
    (tmp_path / registry.note("left", "end")).write_text("{}")
    registry.withdraw_older(registration().job_id, 2, ["kept"], tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kept.json", "new.json", "other.json"]
    registry.withdraw_older(registration().job_id, 2, [], tmp_path / "never made")


def test_in_a_state_directory_a_deleted_ledgers_job_is_replaced(tmp_path: Path) -> None:
    place, state = tmp_path / registry.FOLDER, str(tmp_path)
    registry.publish([registration(job_id="of the deleted ledger", state=state)], place)
    registry.publish([registration(state=state)], place)
    assert registry.lookup("s", place) == registration(state=state)


def test_a_worker_keeps_nothing_of_an_earlier_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_WORKER", "own")
    for name in ("OF_A", "OF_B"):
        monkeypatch.delenv(name, raising=False)

    def entered(**given: str) -> dict[str, str]:
        registry.enter({registry.OPTION: json.dumps(given)} if given else {})
        return {name: os.environ[name] for name in ("OF_WORKER", "OF_A", "OF_B") if name in os.environ}

    assert entered(OF_A="1", OF_WORKER="a") == {"OF_WORKER": "a", "OF_A": "1"}
    assert entered(OF_B="2") == {"OF_WORKER": "own", "OF_B": "2"}
    assert entered() == {"OF_WORKER": "own"}


def test_the_folder_is_private_and_its_name_cannot_be_guessed(tmp_path: Path) -> None:
    assert registry.new_folder() != registry.new_folder()
    place = tmp_path / "registry"
    registry.publish([registration()], place)
    assert place.stat().st_mode & 0o777 == 0o700
    assert (place / "s.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("made_by", ["somebody else", "a link", "a mode that lets others write"])
def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_by: str) -> None:
    """Nothing is read from it, and nothing is written to it."""
    place = tmp_path / "registry"
    registry.publish([registration()], place)
    if made_by == "somebody else":
        monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    elif made_by == "a link":
        (tmp_path / "link").symlink_to(place)
        place = tmp_path / "link"
    else:
        place.chmod(0o777)
    with pytest.raises(EnvironmentProblem, match="another user"):
        registry.publish([registration(incarnation=2)], place)
    if made_by == "somebody else":
        with pytest.raises(EnvironmentProblem, match="another user"):
            registry.lookup("s", place)


def test_what_a_cleaner_deleted_is_rewritten_until_withdrawn(tmp_path: Path) -> None:
    place = tmp_path / "registry"
    entries = [registration(), registration(uid="t")]
    mine = Registrations(entries, place)
    mine.keep()
    assert not place.exists(), "nothing is kept that was not published"
    mine.publish()
    shutil.rmtree(place)
    mine.keep()
    assert [registry.lookup(entry.uid, place) for entry in entries] == entries
    os.utime(place / "s.json", (0, 0))
    mine.keep()
    assert (place / "s.json").stat().st_mtime > 0, "a cleaner by age leaves it alone"
    mine.withdraw()
    mine.keep()
    assert registry.lookup("s", place) is None


def test_what_killed_drivers_have_left_goes_with_the_next_start(tmp_path: Path) -> None:
    names = [f"spark-ext-{digit * 32}" for digit in "0123"]
    abandoned, young, linked, frozen = (tmp_path / name for name in names)
    others = tmp_path / "spark-ext-stacks-0-abc", tmp_path / "spark-ext-mine", tmp_path / "elsewhere"
    entries = [registration(uid="late")]
    for place in (abandoned, young, frozen, *others):
        registry.publish(entries, place)
    linked.symlink_to(others[-1], target_is_directory=True)
    old = time.time() - registry.ABANDONED_AFTER - 60
    for place in (abandoned, frozen, *others):
        os.utime(place / "late.json", (old, old))
        os.utime(place, (old, old))
    registry.publish([registration()], tmp_path / f"spark-ext-{'f' * 32}")
    assert not abandoned.exists() and not frozen.exists()
    for place in (young, linked, *others):
        assert registry.lookup("late", place) == entries[0]
    registry.keep(entries, frozen)
    assert registry.lookup("late", frozen) == entries[0], "a driver that continues after a day"


def test_what_was_withdrawn_is_not_published_again(tmp_path: Path) -> None:
    """A restart that was given up, and whose claim returned late, did so: other jobs were then refused the uids."""
    place = tmp_path / "registry"
    mine = Registrations([registration()], place)
    mine.withdraw()
    with pytest.raises(StateError, match="has ended"):
        mine.publish()
    assert registry.lookup("s", place) is None


def test_what_a_source_has_noted_goes_with_its_registration(tmp_path: Path) -> None:
    place = tmp_path / "registry"
    assert not lag_notes.write(tmp_path, "s", 1, 1.0), "it was never registered"
    registry.publish([registration()], place)
    assert lag_notes.write(place, "s", 5, 12.5)
    assert lag_notes.read(place, "s") == SourceReport(5, None, 12.5)
    registry.withdraw(["s"], place)
    assert not place.exists() and lag_notes.read(place, "s") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"lag": "x", "at": 1}', '{"lag": 3}', "null"])
def test_what_is_no_note_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / registry.note("s", "lag")).write_text(text)
    assert lag_notes.read(tmp_path, "s") is None


def test_notes_are_read_once_a_second_at_most(tmp_path: Path) -> None:
    registry.publish([registration()], tmp_path)
    now = [100.0]
    notes = LagNotes(tmp_path, ["s", "t"], lambda: now[0])
    unknown = SourceReport(None, None)
    assert notes() == {"s": unknown, "t": unknown}
    lag_notes.write(tmp_path, "s", 7, 1.5)
    now[0] += 0.9
    assert notes()["s"] == unknown
    now[0] += 0.1
    assert notes() == {"s": SourceReport(7, None, 1.5), "t": unknown}


def test_nothing_is_left_of_a_note_that_is_written_again(tmp_path: Path) -> None:
    registry.publish([registration()], tmp_path)
    for lag in range(3):
        assert lag_notes.write(tmp_path, "s", lag, float(lag))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "s.lag"]
