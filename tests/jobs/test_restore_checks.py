"""What a restore refuses of a savepoint by its content alone. Pure."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ext.checkpoints.savepoint import About, Savepoint
from spark_ext.errors import StateError
from spark_ext.jobs.composition import ChangeDeclarations
from spark_ext.jobs.restoring.restore_checks import Comparison
from spark_ext.model.checkpoint_metadata import CheckpointMetadata, QueryMetadata, SinkMetadata
from spark_ext.model.dag import JobGraph
from spark_ext.model.definitions import QueryDefinition

ABOUT = About("flights", "job-1", 3, 1, 7, "savepoint", "unaligned", "2024-05-01T12:00:00+00:00", 0)


def comparison(metadata: CheckpointMetadata, *queries: str) -> Comparison:
    """A job of these queries that is restored in place."""
    saved = Savepoint("/kept/monday", ABOUT, metadata, {}, ())
    given = {query: QueryDefinition(()) for query in queries}
    return Comparison("flights", saved, given, frozenset(), JobGraph(), ChangeDeclarations(), in_place=True)


def test_metadata_that_has_no_positions_rolls_no_table_back() -> None:
    """The table would be rolled back to nothing, while the query continues behind epoch 41."""
    raw = json.loads((Path(__file__).parents[1] / "golden" / "checkpoint-v1.json").read_text())
    found = comparison(CheckpointMetadata.from_json(raw), "daily")
    with pytest.raises(StateError, match="does not say where the target of sink 'daily' was after epoch 41") as refused:
        found.check_position("daily", "daily")
    assert "accept_duplicates=('daily',)" in refused.value.do and "query 'daily'" in refused.value.operator


@pytest.mark.parametrize(
    ("epoch", "sink"),
    [
        (4, SinkMetadata("delta_2pc", {}, {"version": 3, "table": "t"}, asked=True)),
        (4, SinkMetadata("delta_2pc", {}, None, asked=True)),  # epochs without rows, and no table yet
        (None, SinkMetadata("delta_2pc", {})),
    ],
)
def test_a_position_that_is_known_or_before_the_first_epoch(epoch: int | None, sink: SinkMetadata) -> None:
    written = CheckpointMetadata("flights", 1, 7, {"daily": QueryMetadata("q", epoch, sinks={"out": sink})})
    read = CheckpointMetadata.from_json(json.loads(json.dumps(written.to_json())))
    assert read == written
    found = comparison(read, "daily", "later")
    found.check_position("daily", "out")
    found.check_position("later", "later-out")
    renamed = replace(found, given={"new": QueryDefinition(())}, declared=ChangeDeclarations({"new": "daily"}))
    renamed.check_position("new", "out")


def test_a_savepoint_that_another_copy_of_the_state_has_taken() -> None:
    """Its positions are numbers of versions that the targets of this copy have too, with other rows."""
    found = comparison(CheckpointMetadata("flights", 1, 7, {}))
    of_a_copy = replace(found, saved=replace(found.saved, about=replace(ABOUT, start=22)))
    with pytest.raises(StateError, match="in a start that this state does not know") as refused:
        of_a_copy.check_start([20, None, 21])
    assert "savepoint /kept/monday" in refused.value.operator and "empty state directory" in refused.value.do
    of_a_copy.check_start([20, 22])
    replace(of_a_copy, in_place=False).check_start([])
    found.check_start([20])  # one that does not say who took it
