"""Events that functions emit: what tasks write down, and which of it counts."""

import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

import spark_ext as sx
from spark_ext.control.emitted import MOST, Part, chosen, collect, discard, discard_uncommitted
from spark_ext.errors import DataError, StateError, StorageError
from spark_ext.model.offsets import SourceOffset
from tests.control.tasks import Epochs
from tests.support.fuse import refusing_disk


@pytest.fixture
def epochs(tmp_path: Path) -> Epochs:
    found = Epochs(tmp_path)
    for _ in range(4):
        found.add(SourceOffset("in"))
    return found


def emit(epochs: Epochs, epoch: int, *types: str, **task: int | str) -> None:
    with epochs.task(epoch, **task):  # type: ignore[arg-type]
        for one in types:
            sx.control.emit(one, {"in": epoch})


def types(epochs: Epochs, epoch: int) -> list[str]:
    return [request.value["type"] for request in collect(str(epochs.checkpoint), "q", epoch)]


def test_events_are_ordered_by_stage_partition_and_call(epochs: Epochs) -> None:
    emit(epochs, 0, "f", stage=12, partition=0, attempt=9)
    emit(epochs, 0, "c", stage=7, partition=10, attempt=8)
    emit(epochs, 0, "a", "b", "a", stage=7, partition=2, attempt=3)
    emit(epochs, 1, "later", stage=15, attempt=20)
    assert types(epochs, 0) == ["a", "b", "a", "c", "f"]
    assert types(epochs, 3) == []
    request = collect(str(epochs.checkpoint), "q", 1)[0]
    assert (request.kind, request.target, request.value) == ("broadcast", "job", {"type": "later", "value": {"in": 1}})
    assert (request.requested_by, request.origin) == ("query:q", "emit")


@pytest.mark.parametrize(
    ("attempts", "counts"), [({1: "a", 2: "abc", 3: "ab"}, "abc"), ({5: "s", 4: "f"}, "f")],
    ids=["beside one that was killed", "the first of equal ones"],
)  # fmt: skip
def test_one_attempt_of_a_task_counts(epochs: Epochs, attempts: dict[int, str], counts: str) -> None:
    for attempt, said in attempts.items():
        emit(epochs, 0, *said, attempt=attempt)
    assert types(epochs, 0) == list(counts)


def test_only_the_newest_start_of_an_epoch_counts(epochs: Epochs) -> None:
    emit(epochs, 0, "old", "old", start="0000000001-0000000009-aa")
    emit(epochs, 0, "new", start="0000000001-0000000010-aa")
    assert types(epochs, 0) == ["new"]


def test_all_processes_of_an_attempt_count(epochs: Epochs) -> None:
    emit(epochs, 0, "mine", attempt=1)
    folder = epochs.checkpoint / "emitted" / "0" / "1"
    mine = Part(0, 0, 1, os.getpid())
    other = Part(0, 0, 1, os.getpid() + 1)
    (folder / other.name).write_text((folder / mine.name).read_text().replace("mine", "of the other"))
    assert types(epochs, 0) == ["mine", "of the other"]


def test_a_line_that_was_cut_off_by_a_kill_is_no_event(epochs: Epochs) -> None:
    emit(epochs, 0, "whole", "cut")
    (file,) = (epochs.checkpoint / "emitted" / "0" / "1").iterdir()
    file.write_text(file.read_text()[:-5])
    assert types(epochs, 0) == ["whole"]


def test_a_start_removes_what_is_uncommitted_and_later_the_accepted(epochs: Epochs) -> None:
    for epoch in range(4):
        emit(epochs, epoch, "a")
    for epoch in range(3):
        epochs.commit(epoch)
    discard_uncommitted(str(epochs.checkpoint))
    assert [len(types(epochs, epoch)) for epoch in range(4)] == [1, 1, 1, 0]
    discard(str(epochs.checkpoint), 1)
    assert [len(types(epochs, epoch)) for epoch in range(4)] == [0, 0, 1, 0]
    discard(str(epochs.checkpoint.parent / "of no query"), 2)


PARTS = st.dictionaries(
    st.builds(Part, st.integers(-1, 3), st.integers(-1, 3), st.integers(0, 3), st.integers(0, 2)), st.integers(0, 5),
    max_size=20,
)  # fmt: skip


@given(PARTS)
def test_one_attempt_of_each_task_is_chosen_with_all_processes(found: dict[Part, int]) -> None:
    picked = chosen(found)
    assert picked == sorted(picked)
    assert {(part.stage, part.partition) for part in picked} == {(part.stage, part.partition) for part in found}
    for task in {(part.stage, part.partition) for part in found}:
        of_task = [part for part in found if (part.stage, part.partition) == task]
        mine = {part for part in picked if (part.stage, part.partition) == task}
        (attempt,) = {part.attempt for part in mine}
        assert mine == {part for part in of_task if part.attempt == attempt}
        for other in {part.attempt for part in of_task}:
            assert sum(found[part] for part in mine) >= sum(found[part] for part in of_task if part.attempt == other)


def test_names_of_files_are_read_as_they_are_written() -> None:
    for part in (Part(3, 4, 5, 6), Part(-1, -1, 0, 77)):
        assert Part.parse(part.name) == part
    assert Part.parse(".draft") is None


@pytest.mark.parametrize(
    ("type", "value", "wrong"),
    [
        ("", None, "type"), ("a" * 201, None, "type"), (None, None, "type"), ("a", float("nan"), "not JSON"),
        ("a", {1, 2}, "not JSON"), ("a", "x" * 65_536, "65536"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_where_it_is_emitted(epochs: Epochs, type: str, value: object, wrong: str) -> None:
    with epochs.task(0), pytest.raises(DataError, match=wrong) as refused:
        sx.control.emit(type, value)
    assert "epoch 0" in refused.value.operator
    assert types(epochs, 0) == []


def test_a_task_may_emit_so_many_events_and_no_more(epochs: Epochs) -> None:
    emit(epochs, 0, *(["a"] * MOST))
    with epochs.task(0, attempt=1):
        for _ in range(MOST):
            sx.control.emit("a")
        with pytest.raises(DataError, match=f"more than {MOST}"):
            sx.control.emit("a")
    assert len(types(epochs, 0)) == MOST


def test_text_of_any_language_is_kept_on_one_line(epochs: Epochs) -> None:
    with epochs.task(0):
        sx.control.emit("Zeile\nzwei\u2028drei \U0001f600", "\r\n")
    (request,) = collect(str(epochs.checkpoint), "q", 0)
    assert request.value == {"type": "Zeile\nzwei\u2028drei \U0001f600", "value": "\r\n"}


def test_a_disk_that_is_not_there_or_refuses_is_an_error_by_name(epochs: Epochs) -> None:
    (epochs.checkpoint / "emitted").write_text("a file in its place")
    with epochs.task(0), pytest.raises(StorageError, match="cannot be written"):
        sx.control.emit("a")
    (epochs.checkpoint / "offsets").rename(epochs.checkpoint / "away")
    with epochs.task(0), pytest.raises(StateError, match="not there on this machine"):
        sx.control.emit("a")


@pytest.mark.process
def test_a_file_system_without_append_is_an_error_by_name(tmp_path: Path) -> None:
    with refusing_disk(tmp_path / "volume", "append") as volume:
        epochs = Epochs(volume)
        epochs.add(SourceOffset("in"))
        with epochs.task(0), pytest.raises(StorageError, match=r"an event cannot be written: .* not supported"):
            sx.control.emit("a")


def test_a_process_writes_for_one_task_after_the_other(epochs: Epochs) -> None:
    for attempt in range(3):
        emit(epochs, 0, "a", partition=attempt, attempt=attempt)
    assert len(list((epochs.checkpoint / "emitted" / "0" / "1").iterdir())) == 3
    assert types(epochs, 0) == ["a", "a", "a"]
