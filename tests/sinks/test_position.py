"""The position of a sink, beside its query's checkpoint: what is remembered, and for whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_ext.errors import ConfigurationError
from spark_ext.sinks.runtime import position
from spark_ext.sinks.runtime.position import NAME, Position, refuse_other_uid, remember, remembered
from spark_ext.storage import StoreFolder, filesystem_of

MINE = Position("out", 1, "query-id", 7)
START = 5


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(position, "_newest", {})
    for folder in ("offsets", "commits"):
        (tmp_path / "q" / "checkpoint" / folder).mkdir(parents=True)
    return str(tmp_path / "q" / "checkpoint")


def test_the_position_is_that_of_one_sink_lineage_and_query(checkpoint: str) -> None:
    assert remembered(checkpoint) is None
    remember(checkpoint, MINE, START)
    assert remembered(checkpoint) == remembered(checkpoint, start=START) == MINE
    assert MINE.of("out", 1, "query-id") == 7
    assert [MINE.of("other", 1, "query-id"), MINE.of("out", 2, "query-id"), MINE.of("out", 1, None)] == [None] * 3


def test_a_repeated_older_epoch_does_not_put_it_back(checkpoint: str) -> None:
    remember(checkpoint, MINE, START)
    remember(checkpoint, Position("out", 1, "query-id", 3), START)
    assert remembered(checkpoint) == MINE
    remember(checkpoint, Position("out", 2, "query-id", 3), START)
    assert remembered(checkpoint) == Position("out", 2, "query-id", 3)


def as_in_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "folder_at", lambda uri, **_: StoreFolder(uri, lambda: filesystem_of(uri)))


def test_a_uri_is_opened_by_arrow(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_in_a_store(monkeypatch)
    remember(f"file://{checkpoint}", MINE, START)
    assert Position(**json.loads((tmp_path / "q" / NAME).read_text())) == remembered(f"file://{checkpoint}") == MINE


def test_what_cannot_be_read_or_written_is_not_known(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a loss of power, with a scheme that Arrow does not know, or in a folder that is not there."""
    (tmp_path / "q" / NAME).write_text('{"sink"')
    assert remembered(checkpoint) is None
    as_in_a_store(monkeypatch)
    for uri in ("nowhere://bucket/q/checkpoint", f"file://{tmp_path}/absent/q/checkpoint"):
        remember(uri, MINE, START)
        assert remembered(uri) is None


def test_a_sink_gets_no_other_uid_while_its_last_epoch_may_be_repeated(checkpoint: str) -> None:
    """After a crash between the two commits the epoch would be written again, under the new uid."""
    remember(checkpoint, MINE, START)
    with pytest.raises(ConfigurationError, match="was 'out' and is 'other' now, and epoch 7 was committed"):
        refuse_other_uid(checkpoint, "other", 1, "query-id")
    refuse_other_uid(checkpoint, "out", 1, "query-id")
    refuse_other_uid(checkpoint, "other", 2, "query-id")
    (Path(checkpoint) / "commits" / "7").touch()
    refuse_other_uid(checkpoint, "other", 1, "query-id")
