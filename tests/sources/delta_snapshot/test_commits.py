"""What a commit says of rows, as pure functions of its file in the log."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.sources.delta_snapshot.commits import DELETE, INSERT, Commit, appended, changed, mark_of, parse

NAMES = st.sampled_from(["a.parquet", "k=1/b%20b.parquet", "c.parquet", "d.parquet"])


def action(path: str, *, data: bool = True, deleted: int | None = None, rows: int = 9) -> dict[str, Any]:
    made: dict[str, Any] = {"path": path, "size": 7, "partitionValues": {}, "dataChange": data}
    made["stats"] = json.dumps({"numRecords": rows})
    if deleted is not None:
        made["deletionVector"] = {"storageType": "i", "pathOrInlineDv": "x", "cardinality": deleted}
    return made


def commit(*actions: Mapping[str, Any], version: int = 5) -> Commit:
    return parse(version, "\n".join(json.dumps(one) for one in actions))


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Commits as writers make them: of a path at most one file is added, one removed; kinds in any order."""
    found: list[dict[str, Any]] = []
    data = draw(st.booleans())
    vectors = st.none() | st.integers(1, 8)
    for kind in ("remove", "add"):
        for path in draw(st.lists(NAMES, unique=True)):
            found.append({kind: action(path, data=data, deleted=draw(vectors))})
    if draw(st.booleans()):
        found += [{"cdc": action(f"_change_data/{n}", data=False)} for n in range(draw(st.integers(0, 2)))]
    found.append({"commitInfo": {"operation": draw(st.sampled_from(["WRITE", "DELETE", "OPTIMIZE"]))}})
    return draw(st.permutations(found))


@given(logs())
def test_a_commit_is_followed_as_a_whole_or_not_at_all(actions: list[dict[str, Any]]) -> None:
    found = commit(*actions)
    changes = [one for entry in actions for kind, one in entry.items() if kind == "remove" and one["dataChange"]]
    added = [one for entry in actions for kind, one in entry.items() if kind == "add" and one["dataChange"]]
    assert found.changes_rows is bool(changes)
    pieces = appended(found)
    assert len(pieces) == (0 if changes else len(added))
    for piece in pieces:
        assert (piece.alive == 5) is (piece.file.deleted is not None)
        assert piece.dead is None and piece.change is None


@given(logs())
def test_changes_are_those_of_the_feed_or_the_files_never_both(actions: list[dict[str, Any]]) -> None:
    found = commit(*actions)
    pieces = changed(found)
    if found.feed:
        assert [piece.file for piece in pieces] == list(found.feed)
        return
    kinds = [piece.change for piece in pieces]
    # A row that is replaced is deleted before it is added again.
    assert kinds == sorted(kinds, key=lambda kind: [DELETE, INSERT].index(kind or ""))
    adds, removes = {file.path: file for file in found.adds}, {file.path: file for file in found.removes}
    for piece in pieces:
        mine, other = (removes, adds) if piece.change == DELETE else (adds, removes)
        if piece.file.path not in other:
            assert piece.file == mine[piece.file.path] and piece.dead is None
        else:
            # Of a file that stays, exactly what one deletion vector removes and the other one does not.
            assert piece.dead == (5 if piece.change == DELETE else 4)
    assert len({(piece.file.path, piece.change) for piece in pieces}) == len(pieces)


@given(st.permutations([{"add": action("a")}, {"add": action("b")}, {"commitInfo": {"operation": "WRITE"}}]))
def test_pieces_have_the_order_of_the_file(actions: list[dict[str, Any]]) -> None:
    expected = [entry["add"]["path"] for entry in actions if "add" in entry]
    assert [piece.file.path for piece in appended(commit(*actions))] == expected


def test_a_merge_that_only_copies_changes_nothing() -> None:
    files = [{"remove": action("a")}, {"add": action("b")}]
    numbers = {"numTargetRowsInserted": "0", "numTargetRowsUpdated": "0", "numTargetRowsDeleted": "0"}
    info = {"operation": "MERGE", "operationMetrics": numbers}
    assert changed(commit(*files, {"commitInfo": info})) == ()
    more = {**info, "operationMetrics": {**numbers, "numTargetRowsInserted": "1"}}
    assert len(changed(commit(*files, {"commitInfo": more}))) == 2
    assert len(changed(commit(*files, {"commitInfo": {"operation": "MERGE"}}))) == 2


@pytest.mark.parametrize(("old", "new", "rows"), [(None, 3, {DELETE: 3}), (2, None, {INSERT: 2})])
def test_the_rows_of_deletion_vectors_are_counted(old: int | None, new: int | None, rows: dict[str, int]) -> None:
    found = changed(commit({"remove": action("a", deleted=old)}, {"add": action("a", deleted=new)}))
    assert {piece.change: piece.rows for piece in found} == rows


@pytest.mark.parametrize("text", ["{", "[1]", '{"add": {}}', '{"add": 3}', '{"metaData": {"id": "x"}}'])
def test_a_damaged_file_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse(3, text)


def test_empty_lines_and_absent_actions_are_passed_over() -> None:
    """As delta-rs writes the first, and some writers the second."""
    assert parse(1, '\n{"add":null}\n\n{"commitInfo":{}}\n').adds == ()


def test_the_mark_is_of_the_whole_file() -> None:
    assert mark_of("a\n") != mark_of("a") and len(mark_of("")) == 16
