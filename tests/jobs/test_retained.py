"""Folders of retained checkpoints: which number comes next, and what is deleted, whatever earlier drivers have left."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.checkpoints.savepoint import MANIFEST, retained_folder
from spark_ext.errors import StateError
from spark_ext.jobs.checkpointing.retained import release_old, retained, unused_number
from spark_ext.ledger import Incarnation
from spark_ext.ledger.schema import CheckpointRow
from tests.support.refusals import refused


def _make(state: Path, number: int, *, whole: bool) -> Path:
    folder = Path(retained_folder(str(state))) / str(number)
    (folder / "queries").mkdir(parents=True)
    (folder / "queries" / "state.zip").touch()
    if whole:
        (folder / MANIFEST).touch()
    return folder


def test_a_number_with_a_folder_is_not_used_again(tmp_path: Path) -> None:
    assert unused_number(str(tmp_path), 5) == 5
    _make(tmp_path, 3, whole=True)
    assert unused_number(str(tmp_path), 5) == 5
    _make(tmp_path, 5, whole=False)
    assert unused_number(str(tmp_path), 5) == 6


def test_a_number_that_is_not_retained_is_refused_by_name(tmp_path: Path) -> None:
    _make(tmp_path, 3, whole=True)
    _make(tmp_path, 12, whole=True)
    _make(tmp_path, 13, whole=False)
    assert Path(retained("job", str(tmp_path), 12)).name == "12"
    with refused(StateError, "job 'job'", "checkpoint 13 is not retained", "retained are: 3, 12"):
        retained("job", str(tmp_path), 13)


@settings(deadline=None)
@given(folders=st.dictionaries(st.integers(1, 30), st.booleans(), max_size=8), keep=st.integers(1, 4))
def test_the_newest_complete_ones_are_kept(
    tmp_path_factory: pytest.TempPathFactory, folders: dict[int, bool], keep: int
) -> None:
    """What is half-written counts for nothing, and is deleted without a row: the ledger never knew of it."""
    state = tmp_path_factory.mktemp("state")
    for number, whole in folders.items():
        _make(state, number, whole=whole)
    complete = sorted(number for number, whole in folders.items() if whole)
    rows: list[CheckpointRow] = []
    release_old(str(state), keep, Incarnation("job", "id", 1, 1), rows.extend)
    root = Path(retained_folder(str(state)))
    left = sorted(int(folder.name) for folder in root.iterdir()) if root.exists() else []
    assert left == complete[-keep:]
    assert [row.checkpoint_id for row in rows] == complete[:-keep]
    assert {row.status for row in rows} <= {"RELEASED"}
