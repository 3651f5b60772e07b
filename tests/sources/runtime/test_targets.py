"""Up to where a run that ends with what is there reads a source, over restarts of its planner."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.sources.delta_snapshot.source import DeltaSnapshot
from spark_ext.sources.runtime.planner import NoLedger, Planner
from spark_ext.sources.runtime.stages import Targets
from spark_ext.spark.session import registry
from spark_ext.spark.session.registry import Registration
from tests.sources.delta_snapshot.test_plan import append
from tests.sources.memory import Log, Store, memory, registration, rows_of, run_to_end


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "registry"
    monkeypatch.setenv(registry.VARIABLE, str(folder))
    return folder


def until_now(place: Path, start: int = 1) -> Registration:
    found = replace(registration(), until_now=True, start=start)
    registry.publish([found], place)
    return found


def planner(store: Store, known: Registration | None) -> Planner:
    made = Planner(memory(store, bounded=False), known, NoLedger())
    made.prepare_available_now()
    return made


def test_another_planner_of_the_run_reads_up_to_the_same_place(place: Path) -> None:
    store, log, known = Store({"a": 3}, ends=False), Log(), until_now(place)
    planner(store, known)
    store.rows.update(a=5, b=2)
    run_to_end(log, planner(store, known))
    assert rows_of(log.read()) == {"a": [0, 1, 2]}
    run_to_end(log, planner(store, until_now(place, 2)))
    assert rows_of(log.read()) == {"a": [0, 1, 2, 3, 4], "b": [0, 1]}


def test_a_channel_at_its_end_begins_there_also_for_the_next_run(place: Path) -> None:
    store, log = Store({"a": 0}, ends=False), Log()
    run_to_end(log, planner(store, until_now(place, 1)))
    assert list(log.offsets[-1].running) == ["a"]
    epochs = len(log.offsets)
    run_to_end(log, planner(store, until_now(place, 2)))
    assert len(log.offsets) == epochs


def test_a_query_with_sparks_own_trigger_keeps_nothing(place: Path) -> None:
    store, log, known = Store({"a": 3}, ends=False), Log(), replace(registration(), start=1)
    planner(store, known)
    store.rows.update(a=5)
    run_to_end(log, planner(store, known))
    assert rows_of(log.read()) == {"a": [0, 1, 2, 3, 4]}
    assert not list(place.glob("*.now"))


def test_each_stage_has_targets_of_its_own(place: Path) -> None:
    targets = Targets(until_now(place), place)
    assert targets.of(None, lambda: {"a": 1}) == {"a": 1}
    assert targets.of({"number": 1}, lambda: {"b": 2}) == {"b": 2}
    again = Targets(until_now(place), place)
    assert again.of(None, lambda: {"a": 9}) == {"a": 1}
    assert again.of({"number": 1}, lambda: {"b": 9}) == {"b": 2}


def test_they_are_removed_with_the_registration(place: Path) -> None:
    known = until_now(place)
    Targets(known, place).of(None, lambda: {"a": 1})
    registry.withdraw([known.uid], place)
    assert not place.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"start": 1}', '{"start": 2, "targets": {}}'])
def test_a_note_that_says_nothing_of_this_run_is_replaced(place: Path, text: str) -> None:
    known = until_now(place)
    (place / registry.note(known.uid, "now")).write_text(text)
    assert Targets(known, place).of(None, lambda: {"a": 1}) == {"a": 1}
    assert Targets(known, place).of(None, lambda: {"a": 2}) == {"a": 1}


def of_table(table: Path, known: Registration, **more: str) -> Planner:
    options = {"uid": "s", "path": str(table), "follow": "true", "poll_interval": "0", "readers": "1", **more}
    source = DeltaSnapshot(options)
    source.declared = source.schema()
    made = Planner(source, known, NoLedger())
    made.prepare_available_now()
    return made


def versions(log: Log) -> set[str]:
    """The version of the snapshot, and the one behind which the log ends."""
    names = {one.channel.partition("/")[0] for epoch in log.read() for one in epoch}
    at = log.offsets[-1].running.get("versions")
    return names | (set() if at is None else {f"ends at {at.at[0]}"})


@pytest.mark.parametrize("epochs", range(5))
def test_a_table_is_read_as_of_the_start_if_the_planner_dies(place: Path, tmp_path: Path, epochs: int) -> None:
    table, log, known = tmp_path / "table", Log(), until_now(place)
    for one in range(3):
        append(table, one, 1)
    first = of_table(table, known, version="1")
    for _ in range(epochs):
        log.plan(first)
    append(table, 3, 1)
    run_to_end(log, of_table(table, known, version="1"))
    assert versions(log) == {"v1", "versions", "ends at 3"}
    run_to_end(log, of_table(table, until_now(place, 2), version="1"))
    assert versions(log) == {"v1", "versions", "ends at 4"}


def test_the_version_of_a_snapshot_is_chosen_when_the_run_begins(place: Path, tmp_path: Path) -> None:
    table, log, known = tmp_path / "table", Log(), until_now(place)
    append(table, 0, 1)
    of_table(table, known)
    append(table, 1, 1)
    run_to_end(log, of_table(table, known))
    assert versions(log) == {"v0", "ends at 1"}


@pytest.mark.parametrize("epochs", range(2))
def test_a_run_begun_behind_the_newest_version_skips_none(place: Path, tmp_path: Path, epochs: int) -> None:
    table, log, known = tmp_path / "table", Log(), until_now(place)
    append(table, 0, 1)
    first = of_table(table, known, starting_version="latest")
    for _ in range(epochs):
        log.plan(first)
    append(table, 1, 1)
    run_to_end(log, of_table(table, known, starting_version="latest"))
    assert versions(log) == {"ends at 1"}
    run_to_end(log, of_table(table, until_now(place, 2), starting_version="latest"))
    assert versions(log) == {"versions", "ends at 2"}
