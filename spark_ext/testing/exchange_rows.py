"""The part of the contract of exchanges that is about rows: what comes back, in which order, in how many tasks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_ext.errors import StateError, StorageError
from spark_ext.exchange.positions import Piece
from spark_ext.model.commits import Task
from spark_ext.schemas.arrow import arrow_schema
from spark_ext.testing import every_type
from spark_ext.testing.exchange_driver import Place, Producer, Reader, numbered


class ExchangeRowsContract:
    """A part of `ExchangeContract`."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        """The exchange, which is not there yet."""
        raise NotImplementedError

    def test_x3_a_piece_is_read_from_any_row_to_any_other(self, place: Place) -> None:
        """Over the borders of batches; by partition, in the order in which they were written."""
        producer = Producer(place).claim()
        batch = numbered(0, 5000)
        segment = producer.write(0, batch, targets=[one % 2 for one in range(5000)])
        assert segment is not None
        runs = [run for run in segment.runs if run.partition == 1]
        expected = list(range(1, 5000, 2))
        assert sum(run.rows for run in runs) == len(expected)
        for skip, rows in ((0, 2500), (0, 1), (2499, 1), (700, 1100), (1250, 1)):
            found: list[int] = []
            passed = 0
            for run in runs:
                left = max(0, skip - passed)
                if left < run.rows and rows > len(found):
                    piece = Piece(segment.name, run.first, run.batches, left, min(run.rows - left, rows - len(found)))
                    for part in producer.parts.reader.read(piece):
                        found += part.column("id").to_pylist()
                passed += run.rows
            assert found == expected[skip : skip + rows]

    def test_x3_nulls_and_empty_tasks(self, place: Place) -> None:
        """A task without rows stores nothing; nulls come back as nulls."""
        producer = Producer(place).claim()
        assert producer.write(0, numbered(0, 0)) is None
        nulls = pa.RecordBatch.from_pydict({"id": pa.array([None, 1], pa.int64()), "name": pa.array([None, "ü"])})
        segment = producer.write(0, nulls, targets=[2, 2])
        assert segment is not None
        producer.commit(0, [segment])
        reader = Reader(place).all()
        assert reader.rows == {0: [], 1: [], 2: [None, 1]}

    def test_x3_a_segment_that_is_damaged_or_missing_is_an_error(self, place: Place) -> None:
        """A missing one may come back, with its storage; it is not taken for one without rows."""
        producer = Producer(place).claim()
        segment = producer.write(0, numbered(0, 10))
        assert segment is not None
        producer.commit(0, [segment])
        file = Path(place.path) / "data" / segment.name
        file.write_bytes(file.read_bytes()[:-20])
        with pytest.raises(StateError, match=f"{segment.name} is damaged"):
            Reader(place).all()
        file.unlink()
        with pytest.raises((OSError, StorageError)):
            Reader(place).all()

    def test_x3_every_type_comes_back_as_it_was(self, place: Place) -> None:
        """The Arrow types of the batches included, with extreme values and nulls."""
        place.parts().master.register(place.descriptor(schema=every_type.EVERY_TYPE))
        schema = arrow_schema(every_type.EVERY_TYPE)
        rows = [*(every_type.row(number) for number in range(1, 400, 7)), every_type.empty(-1)]
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        whose = Task("flights", "q", 0, 0, 0, 1, 0)
        segment = place.parts().writer.write(iter([(batch, [1] * len(rows))]), whose, 3)
        assert segment is not None
        piece = Piece(segment.name, 0, 1, 0, len(rows))
        assert pa.Table.from_batches(place.parts().reader.read(piece)) == pa.Table.from_batches([batch])

    @pytest.mark.parametrize(("tasks", "readers", "most"), [(1, 5, None), (5, 1, 7), (4, 2, 1), (3, 3, 100)])
    def test_x4_producer_and_consumer_have_different_numbers_of_tasks(
        self, place: Place, tasks: int, readers: int, most: int | None
    ) -> None:
        """Each partition has its rows in order, whatever the limit of an epoch; nothing is distributed again."""
        producer = Producer(place, partitions=4).claim()
        producer.run(0, 0, 40, tasks=tasks)
        producer.run(1, 40, 60, tasks=1)
        producer.seal(2)
        reader = Reader(place, readers).all(most)
        assert reader.rows == {part: list(range(part, 60, 4)) for part in range(4)}
        assert reader.sealed
