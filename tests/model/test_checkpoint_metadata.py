"""Metadata of a checkpoint: the former version stays readable, and three ways of having finished stay apart."""

import json
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.errors import StateError
from spark_ext.model import offsets
from spark_ext.model.checkpoint_metadata import (
    VERSION,
    CheckpointMetadata,
    ExchangeMetadata,
    Finish,
    QueryMetadata,
    SinkMetadata,
    SourceMetadata,
    finish_of,
)
from spark_ext.model.end_of_input import EndOffset
from spark_ext.model.offsets import Finished, Running, SourceOffset, kind_of

GOLDEN = Path(__file__).parents[1] / "golden"

PARTLY = SourceOffset(
    "flights", lineage=1,
    running={"2013-03.parquet": Running(1200, {"size": 99}, 0, True), "2013-02.parquet": Running(7)},
    finished=(Finished(2, "2013-01.parquet", 27004, {"size": 70}, 0, True),), confirmed=1, sequence=2, control=4,
)  # fmt: skip
FULLY = SourceOffset("weather", lineage=1, confirmed=3, sequence=3, ended=True, final=2)
CHECKPOINT = CheckpointMetadata(
    job="flights", lineage=1, incarnation=7,
    queries={
        "daily": QueryMetadata(
            query_id="6f1c0c60-0f5e-4d5f-9f6e-000000000001", epoch=41,
            sources={
                "flights": SourceMetadata("files", {"path": "data", "uid": "flights"}, PARTLY, Finish.PARTLY, 2),
                "weather": SourceMetadata("files", {"uid": "weather"}, FULLY, Finish.FULLY, 3),
                "idle": SourceMetadata("postgres", {"password": "***"}, None),
            },
            sinks={"daily": SinkMetadata("delta_2pc", {"path": "out/daily", "uid": "daily"})},
            ends={"flights~end": EndOffset("flights~end", 1, True)},
        ),
        "earlier": QueryMetadata(
            query_id="6f1c0c60-0f5e-4d5f-9f6e-000000000002", epoch=9, finished=True,
            sources={"airports": SourceMetadata("files", {}, FULLY, Finish.ON_RESTORE, 3)},
        ),
        "fresh": QueryMetadata(query_id=None, epoch=None),
    },
)  # fmt: skip

DAILY = CHECKPOINT.queries["daily"]
SINK = replace(DAILY.sinks["daily"], position={"version": 12, "table": "t"}, asked=True)
QUERIES = {**CHECKPOINT.queries, "daily": replace(DAILY, sinks={"daily": SINK})}
# With what version 2 has added.
NEWEST = replace(CHECKPOINT, queries=QUERIES, exchanges={"enriched": ExchangeMetadata("arrow", 5, 9, True)})


def test_the_newest_version_is_written_as_in_its_golden_file() -> None:
    """A change of the written form needs a new version, and a golden file of its own."""
    assert VERSION == 2
    # Offsets have versions of their own, and golden files of their own.
    newest = lambda raw: {**raw, "version": offsets.VERSION} if kind_of(raw) is not None else raw  # noqa: E731
    assert NEWEST.to_json() == json.loads((GOLDEN / "checkpoint-v2.json").read_text(), object_hook=newest)


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_each_version_ever_written_is_read(version: int) -> None:
    raw = json.loads((GOLDEN / f"checkpoint-v{version}.json").read_text())
    assert CheckpointMetadata.from_json(raw) == (NEWEST if version == VERSION else CHECKPOINT)


@pytest.mark.parametrize("version", [None, 0, VERSION + 1])
def test_a_newer_version_is_refused(version: int | None) -> None:
    with pytest.raises(StateError, match="not known") as refused:
        CheckpointMetadata.from_json({**CHECKPOINT.to_json(), "version": version})
    assert refused.value.operator == "job 'flights'"


@pytest.mark.parametrize(
    ("offset", "started", "finish"),
    [
        (None, True, Finish.NONE), (SourceOffset("s", running={"a": Running(1)}), True, Finish.NONE),
        (PARTLY, True, Finish.PARTLY), (SourceOffset("s", confirmed=5, sequence=5), True, Finish.PARTLY),
        (FULLY, True, Finish.FULLY), (SourceOffset("s", ended=True), True, Finish.FULLY),
        (FULLY, False, Finish.ON_RESTORE), (None, False, Finish.ON_RESTORE),
    ],
)  # fmt: skip
def test_how_far_a_source_had_finished(offset: SourceOffset | None, started: bool, finish: Finish) -> None:
    assert finish_of(offset, started=started) is finish


names = st.text(max_size=6)
sources = st.builds(
    SourceMetadata, format=names, options=st.dictionaries(names, names, max_size=2),
    offset=st.none() | st.builds(SourceOffset, uid=names, sequence=st.integers(0, 9)), finish=st.sampled_from(Finish),
    sequence=st.integers(0, 9),
)  # fmt: skip
queries = st.builds(
    QueryMetadata, query_id=st.none() | names, epoch=st.none() | st.integers(0, 10**9), finished=st.booleans(),
    sources=st.dictionaries(names, sources, max_size=2),
    sinks=st.dictionaries(names, st.builds(SinkMetadata, format=names, options=st.just({})), max_size=2),
    ends=st.dictionaries(names, st.builds(EndOffset, uid=names), max_size=2),
)  # fmt: skip
checkpoints = st.builds(
    CheckpointMetadata, job=names, lineage=st.integers(0, 9), incarnation=st.integers(1, 9),
    queries=st.dictionaries(names, queries, max_size=3),
)  # fmt: skip


@given(checkpoints)
def test_metadata_survives_json(metadata: CheckpointMetadata) -> None:
    assert CheckpointMetadata.from_json(json.loads(json.dumps(metadata.to_json()))) == metadata
