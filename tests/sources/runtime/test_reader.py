"""The stream reader of a source, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from spark_ext.errors import StateError
from spark_ext.model.offsets import SourceOffset
from spark_ext.sources.runtime.reader import ChannelReader
from spark_ext.spark.session import registry
from tests.sources.memory import Store, memory


@pytest.mark.core
@pytest.mark.parametrize(
    "offset", [SourceOffset("s", lineage=1), SourceOffset("s", confirmed=2, sequence=2), SourceOffset("s", control=3)]
)
def test_i3_a_jobs_offset_is_not_planned_further_without_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: SourceOffset
) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "gone"))
    start = offset.to_json()
    with pytest.raises(StateError, match="those of a job"):
        ChannelReader(memory(Store({"a": 3})), StructType()).latestOffset(start, ReadAllAvailable())
    with pytest.raises(StateError, match="those of a job"):
        ChannelReader(memory(Store({"a": 3})), StructType()).partitions(start, start)


def test_outside_a_job_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(tmp_path / "gone"))
    start = SourceOffset("s").to_json()
    ChannelReader(memory(Store({"a": 3})), StructType()).latestOffset(start, ReadAllAvailable())
