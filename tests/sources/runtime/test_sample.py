"""A share of the rows: by chance, and the same rows whenever an epoch is read."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType

from spark_ext.control import stamps
from spark_ext.errors import StateError
from spark_ext.model.configuration import Configuration, Stamp
from spark_ext.model.control import Event, Target
from spark_ext.model.offsets import Range, Running, SourceOffset
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import ChannelSource, Limit
from spark_ext.sources.datagen import DataGen
from spark_ext.sources.files.source import Files
from spark_ext.sources.runtime.reader import ChannelReader, ReadTask
from spark_ext.sources.runtime.sample import sampled, shares_of
from spark_ext.spark.session import registry
from tests.sources.memory import registration


def in_force(*given: tuple[str, float | None]) -> Configuration:
    events = [
        Event(number, f"e{number}", "sample", Target.parse(target), None if share is None else {"fraction": share})
        for number, (target, share) in enumerate(given, 1)
    ]
    return Configuration().after(events)


def rows_of(piece: Range, share: float, size: int = 1_000) -> list[int]:
    batches = (
        pa.record_batch({"n": range(at, min(at + size, piece.end))}) for at in range(piece.start, piece.end, size)
    )
    return [n for batch in sampled(batches, piece, {piece.channel: share}) for n in batch.column("n").to_pylist()]


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
def test_the_share_is_right_within_four_deviations(share: float) -> None:
    count = 1_000_000
    found = len(rows_of(Range("c", None, 0, count), share, 65_536))
    assert abs(found - share * count) < 4 * (share * (1 - share) * count) ** 0.5


def test_rows_are_chosen_all_over_the_range_and_in_order() -> None:
    found = rows_of(Range("c", None, 0, 100_000), 0.1)
    assert found == sorted(set(found))
    assert all(
        abs(len([n for n in found if low <= n < low + 10_000]) - 1_000) < 150 for low in range(0, 100_000, 10_000)
    )


def test_the_same_rows_are_in_any_batches_and_in_larger_shares() -> None:
    piece = Range("c", {"any": "data"}, 7, 5_000)
    assert rows_of(piece, 0.3, 1) == rows_of(piece, 0.3, 999) == rows_of(piece, 0.3, 10**6)
    assert set(rows_of(piece, 0.1)) < set(rows_of(piece, 0.5))


def test_channels_and_ranges_differ() -> None:
    ranges = [Range("a", None, 0, 1_000), Range("b", None, 0, 1_000), Range("a", None, 1_000, 2_000)]
    assert len({tuple(n - piece.start for n in rows_of(piece, 0.5)) for piece in ranges}) == 3


def test_a_position_of_any_form_is_hashed() -> None:
    for start in ([3, 0], {"upto": "k", "rows": 1}, {"rows": 1, "upto": "k"}, None, "x"):
        found = list(sampled([pa.record_batch({"n": range(1_000)})], Range("c", None, start, 9), {"c": 0.5}))
        assert 400 < sum(batch.num_rows for batch in found) < 600
    by_order = [
        list(sampled([pa.record_batch({"n": range(99)})], Range("c", None, start, 9), {"c": 0.5}))
        for start in ({"upto": "k", "rows": 1}, {"rows": 1, "upto": "k"})
    ]
    assert by_order[0] == by_order[1], "an object has no order"


def test_a_channels_own_share_counts_and_the_whole_is_untouched() -> None:
    batch = pa.record_batch({"n": range(10)})
    assert next(sampled([batch], Range("c", None, 0, 10), {})) is batch
    pieces = [Range("a", None, 0, 9), Range("b", None, 0, 9)]
    assert shares_of(in_force(), "s", pieces) == {}
    assert shares_of(in_force(("source:s", 1)), "s", pieces) == {}
    assert shares_of(in_force(("source:t", 0.5)), "s", pieces) == {}
    assert shares_of(in_force(("source:s", 0.5), ("source:s/a", 0.1)), "s", pieces) == {"a": 0.1, "b": 0.5}
    assert shares_of(in_force(("source:s", 0.5), ("source:s/a", 1)), "s", pieces) == {"b": 0.5}
    assert shares_of(in_force(("source:s/a", 0.1)), "s", pieces) == {"a": 0.1}
    assert shares_of(in_force(("source:s", 0.5), ("source:s", None)), "s", pieces) == {}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a registry in which a job has registered source `s`."""
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "registry"))
    entry = registration(state=str(tmp_path / "state"), checkpoint=str(tmp_path / "checkpoint"), lineage=1)
    registry.publish([entry], tmp_path / "registry")
    return tmp_path / "registry"


def stamped(place: Path, configuration: Configuration) -> str:
    return stamps.write(str(place.parent / "checkpoint"), Stamp(configuration).text())


def epoch(source: Callable[[], ChannelSource], schema: StructType, start: SourceOffset, end: SourceOffset) -> list[str]:
    """The rows of an epoch, read as Spark does it: by a new planner, and tasks in other processes."""
    planned = ChannelReader(source(), schema)
    found = []
    for task in planned.partitions(json.loads(json.dumps(start.to_json())), json.loads(json.dumps(end.to_json()))):
        assert isinstance(task, ReadTask)
        shipped, sent = pickle.loads(pickle.dumps((ChannelReader(source(), schema), task)))
        found += [str(row) for batch in shipped.read(sent) for row in batch.to_pylist()]
    return sorted(found)


@pytest.mark.parametrize("name", ["datagen", "parquet", "csv"])
def test_a_replay_chooses_the_same_rows_with_any_readers(tmp_path: Path, place: Path, name: str) -> None:
    schema = columns("id bigint")
    folder = tmp_path / "data"
    folder.mkdir()
    table = pa.table({"id": range(1_000_000)})
    if name == "parquet":
        pq.write_table(table, folder / "a.parquet", row_group_size=50_000)
    elif name == "csv":
        (folder / "a.csv").write_text("".join(f"{n}\n" for n in range(1_000_000)))

    def made(readers: int = 1) -> ChannelSource:
        given = {"uid": "s", "readers": str(readers)}
        if name == "datagen":
            return DataGen({**given, "rows": "1000000"})
        return Files({**given, "path": str(folder)})

    channel = next(iter(_with(made(), schema).discover()))
    whole = _with(made(), schema).advance(channel, 0, Limit()).end
    start = SourceOffset("s", lineage=1)
    end = SourceOffset("s", 1, {channel.id: Running(whole, channel.data, 0, new=True)}, control=1)
    chosen = SourceOffset("s", 1, end.running, control=1, stamp=stamped(place, in_force(("source:s", 0.01))))
    first = epoch(lambda: made(1), schema, start, chosen)
    assert 9_500 < len(first) < 10_500
    assert first == epoch(lambda: made(8), schema, start, chosen)
    if name == "datagen":
        all_rows = SourceOffset("s", 1, end.running, control=1, stamp=stamped(place, in_force(("source:s", 1))))
        assert len(ChannelReader(made(4), schema).partitions(start.to_json(), all_rows.to_json())) == 4


def test_an_epoch_with_a_lost_stamp_gets_no_other_configuration(place: Path) -> None:
    end = SourceOffset("s", 1, {"0": Running(9, {"rows": 9}, 0, new=True)}, control=1, stamp="0" * 32)
    with pytest.raises(StateError, match="is missing"):
        epoch(lambda: DataGen({"uid": "s", "rows": "9"}), columns("id bigint"), SourceOffset("s", lineage=1), end)


def _with(source: ChannelSource, schema: StructType) -> ChannelSource:
    source.declared = schema
    return source
