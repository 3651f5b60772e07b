"""What a restore puts in place of what was there, also after an attempt that was interrupted. Without Spark."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from spark_ext import storage
from spark_ext.exchange.pinned import UNFINISHED, pin, put_back
from spark_ext.jobs.composition import Composition
from spark_ext.jobs.restoring import restored_parts
from spark_ext.jobs.restoring.reshaped_exchanges import ReshapedExchanges
from spark_ext.jobs.restoring.restored_parts import RestoredStates, claim_exchanges, clear_away, exchanges_in
from spark_ext.model.checkpoint_metadata import QueryMetadata
from spark_ext.model.commits import FenceMark
from spark_ext.model.lineages import LineageEvent, Lineages
from spark_ext.spark.logs.epoch_files import STAMPS
from spark_ext.storage import Location
from spark_ext.testing.exchange_driver import WHO, Place, Producer


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory whose files are reached as those of an object store are."""
    monkeypatch.setattr(Location, "of", staticmethod(lambda path, options: Location(path, options)))
    monkeypatch.setattr(restored_parts, "local_path", lambda uri: None)
    return tmp_path


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


LEFT = ("queries/q/checkpoint/commits/7", "exchanges/x/_delta_log/0.json", "exchanges/x/data/a", "ledger/jobs/a")


def test_an_object_store_is_cleaned_after_an_interrupted_restore(store: Path) -> None:
    """Otherwise its epochs would count as committed beside those of another savepoint."""
    make(store, *LEFT)
    clear_away(f"file://{store}", 3, again=False)
    assert names_in(store) == set(LEFT), "what no restore has put there is nobody's to delete"
    clear_away(f"file://{store}", 3, again=True)
    assert names_in(store) == {"ledger/jobs/a"}


@pytest.mark.parametrize("again", [False, True])
def test_on_a_file_system_it_is_moved_aside(tmp_path: Path, again: bool) -> None:
    make(tmp_path, *LEFT)
    clear_away(str(tmp_path), 3, again=again)
    assert names_in(tmp_path) == {"ledger/jobs/a", *(f"replaced/3/{name}" for name in LEFT[:3])}
    clear_away(str(tmp_path), 4, again=True)


def test_on_an_object_store_commits_are_copied_last(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch that counts as committed has its offsets and its state, also after a crash in between."""
    draft, place = "restoring/5/queries/q", "queries/q/checkpoint"
    names = {"commits/7", "metadata", "offsets/7", "state/0/0/7_a.zip"}
    make(store / draft, *names)
    for name in names:  # the store of local files asks for the folders, unlike others
        (store / place / name).parent.mkdir(parents=True, exist_ok=True)
    copied = []

    def link(source: str, target: str) -> None:
        copied.append(target.partition(f"{place}/")[2])
        storage.link(source, target)

    monkeypatch.setattr(restored_parts, "link", link)
    comparison: Any = SimpleNamespace(
        names={"q": "q"}, saved=SimpleNamespace(metadata=SimpleNamespace(queries={"q": QueryMetadata("id", 7)}))
    )
    RestoredStates(comparison, f"file://{store}", 5, Lineages()).put()
    assert set(copied) == names == names_in(store / place)
    assert copied[-1] == "commits/7"


def test_stamps_under_a_name_between_two_renames_are_kept(tmp_path: Path) -> None:
    """The savepoint has the query as `a`; it ran as `b` since, and is restored as `c`. `x` is another query."""
    kept = {"queries/b/checkpoint", "replaced/4/queries/a/checkpoint"}
    make(tmp_path, *(f"{place}/{STAMPS}/{place[0]}.json" for place in (*kept, "queries/x/checkpoint")))
    saved = SimpleNamespace(
        about=SimpleNamespace(lineage=1), metadata=SimpleNamespace(queries={"a": QueryMetadata("id", 7)}),
        below=lambda place: [], folder=str(tmp_path / "savepoint"),
    )  # fmt: skip
    comparison: Any = SimpleNamespace(names={"c": "a"}, saved=saved, job="lab")
    renamed = [LineageEvent("b", 1, 2, renamed_from="a"), LineageEvent("a", 2, 2)]
    another = [LineageEvent("x", 1, 3, renamed_from="y"), LineageEvent("y", 3, 3)]
    reshaped = ReshapedExchanges(comparison, Composition(Mock(), "lab", str(tmp_path)), (), {})
    RestoredStates(comparison, str(tmp_path), 5, Lineages((*renamed, *another))).prepare(Mock(), {}, reshaped)
    assert names_in(tmp_path / "restoring/5/queries/c") == {f"{STAMPS}/q.json", f"{STAMPS}/r.json"}


JOB = "job 'shop'"


def exchange(kind: str, folder: Path, epochs: int) -> Place:
    """An exchange with the claim in entry 0, and an entry per epoch after it."""
    made = Place(kind, str(folder))
    producer = Producer(made).claim()
    for epoch in range(epochs):
        producer.run(epoch, epoch * 10, epoch * 10 + 10)
    return made


@pytest.mark.slow(1, "exchanges of up to sixty entries in Delta logs")
@pytest.mark.parametrize("kind", ["arrow", "delta"])
def test_the_last_numbers_of_what_was_moved_aside_count(tmp_path: Path, kind: str) -> None:
    """A writer of the log that was moved aside first may still create entry 41, in the place of the newest."""
    state = tmp_path / "state"
    old = exchange(kind, state / "replaced" / "7" / "exchanges" / "x", 40)
    exchange(kind, state / "replaced" / "8" / "exchanges" / "x", 3)
    exchange(kind, state / "replaced" / "8" / "exchanges" / "y", 2)
    exchange(kind, state / "replaced" / "3" / "exchanges" / "x", 60)
    exchange(kind, state / "exchanges" / "y", 5)
    assert claim_exchanges(str(state), {8, 7}, FenceMark(9, 99), "job-1", JOB) == {"x": 40, "y": 6}
    claimed = [(name, master.log.look().mark) for name, _, master in exchanges_in(str(state), JOB)]
    assert claimed == [("y", FenceMark(9, 99))]
    assert old.parts().master.log.look().mark == FenceMark(1, 1000), "claimed by the restore that has moved it"


@pytest.mark.parametrize("kind", ["arrow", "delta"])
def test_what_was_not_put_back_in_full_has_no_say(tmp_path: Path, kind: str) -> None:
    """Nobody has written to it, and its log may be one that cannot be read."""
    state = tmp_path / "state"
    made = exchange(kind, tmp_path / "old", 3)
    pin(made.parts().master, made.path, 2, 4, str(tmp_path / "pinned"))
    place = state / "exchanges" / "x"
    put_back(str(tmp_path / "pinned"), str(place), number=9, lineage=1, job_id="job-1", who=WHO)
    (place / UNFINISHED).touch()
    for entry in place.glob("log/*9*"):
        entry.unlink()
    assert claim_exchanges(str(state), (), FenceMark(2, 20), "job-1", JOB) == {}
