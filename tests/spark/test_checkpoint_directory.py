"""What a killed driver leaves in a query's checkpoint directory, and how a prepared one is put in its place."""

from pathlib import Path

import pytest

from spark_ext.spark.logs.checkpoint_directory import clear_drafts, clear_unfinished, put_in_place
from tests.support.jobs import JobHarness, expected

UNFINISHED = ".0.9f2b4c1e-5a53-4b3a-8f5e-2a3b4c5d6e7f.tmp"


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_unfinished_files_of_the_first_epoch_are_removed(tmp_path: Path) -> None:
    touch(tmp_path / "offsets", UNFINISHED, f".{UNFINISHED}.crc")
    assert clear_unfinished(str(tmp_path)) == [f".{UNFINISHED}.crc", UNFINISHED]
    assert list((tmp_path / "offsets").iterdir()) == []
    assert clear_unfinished(f"file://{tmp_path}") == []
    assert clear_unfinished(str(tmp_path / "never started")) == []


@pytest.mark.parametrize("name", ["0", "1.compact", ".0.swp", "notes.tmp", ".tmp"])
def test_whatever_else_is_there_stays(tmp_path: Path, name: str) -> None:
    """Spark refuses it, or it is an epoch, with which Spark looks at nothing."""
    touch(tmp_path / "offsets", name)
    clear_unfinished(str(tmp_path))
    assert [path.name for path in (tmp_path / "offsets").iterdir()] == [name]


def test_nothing_is_removed_beside_an_epoch(tmp_path: Path) -> None:
    """A driver that has been replaced may be writing it, and Spark ignores it."""
    touch(tmp_path / "offsets", "0", UNFINISHED.replace(".0.", ".1."))
    assert clear_unfinished(str(tmp_path)) == []
    assert len(list((tmp_path / "offsets").iterdir())) == 2


def test_drafts_of_killed_drivers_are_removed_wherever_they_are(tmp_path: Path) -> None:
    uuid = "84502ab7-5ea9-4a9c-8b8e-93261ede3025"
    drafts = [
        f"commits/.7.{uuid}.tmp",
        f"offsets/..7.{uuid}.tmp.crc",
        f"state/0/1/.2_{uuid}.changelog.{uuid}.tmp",
        f"state/0/1/.2_{uuid}.changelog.crc.{uuid}.tmp",
    ]
    kept = [f"state/0/1/2_{uuid}.changelog", "offsets/7", "offsets/.7.crc", "state/.notes.tmp", f"{uuid}.tmp"]
    for name in (*drafts, *kept):
        file = tmp_path / name
        touch(file.parent, file.name)
    assert clear_drafts(f"file://{tmp_path}") == sorted(drafts)
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()) == sorted(kept)
    assert clear_drafts(str(tmp_path)) == []
    assert clear_drafts(str(tmp_path / "never started")) == []


@pytest.mark.parametrize("manager", ["FileContextBasedCheckpointFileManager", "FileSystemBasedCheckpointFileManager"])
def test_a_driver_killed_in_sparks_first_offsets_starts_again(lab: JobHarness, manager: str) -> None:
    """Spark itself refuses the start for good: STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY."""
    jvm = lab.spark._jvm
    assert jvm is not None
    package = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    folder = lab.checkpoint() / "offsets"
    folder.mkdir(parents=True)
    root = jvm.org.apache.hadoop.fs.Path(f"file://{folder}")
    hadoop = lab.spark._jsparkSession.sessionState().newHadoopConf()
    unfinished = getattr(package, manager)(root, hadoop).createAtomic(jvm.org.apache.hadoop.fs.Path(root, "0"), False)
    try:
        unfinished.write(118)
        unfinished.flush()
        assert [path.name for path in folder.glob("*.tmp")] != []
        result = lab.run(lab.source(counts="100"))
    finally:
        unfinished.cancel()
    assert result.query("q").finished
    assert lab.numbers() == expected(100)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    folder = tmp_path / "prepared"
    (folder / "state" / "0").mkdir(parents=True)
    (folder / "metadata").write_text("prepared")
    return folder


def files(place: Path) -> set[str]:
    return {str(file.relative_to(place)) for file in place.rglob("*")}


@pytest.mark.parametrize("late", [(), ("state/0/0/7.zip",), ("state/0/0/SSTs/a.sst", "state/1/0/7.zip")])
def test_state_that_was_uploaded_late_is_replaced(prepared: Path, tmp_path: Path, late: tuple[str, ...]) -> None:
    place = tmp_path / "place"
    for name in late:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("late")
    put_in_place(prepared, place)
    assert files(place) == {"metadata", "state", "state/0"} and not prepared.exists()


@pytest.mark.parametrize("other", ["metadata", "offsets/0", "commits/0"])
def test_a_checkpoint_is_never_replaced(prepared: Path, tmp_path: Path, other: str) -> None:
    place = tmp_path / "place"
    for name in ("state/0/0/7.zip", other):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("kept")
    before = files(place)
    with pytest.raises(OSError, match="not empty"):
        put_in_place(prepared, place)
    assert files(place) == before and prepared.exists()
