"""Which tables and rows a `delta` exchange refuses, and which kind is found at a place."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, TableFeatures
from pyspark.sql import types as T

from spark_ext.errors import ConfigurationError, StateError, UnsupportedTableError
from spark_ext.exchange.delta.segments import incarnation_of
from spark_ext.exchange.delta.table import read_commit
from spark_ext.exchange.kinds import kind_at, parts
from spark_ext.testing.exchange_driver import WHO, Place, Producer


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta", str(tmp_path / "flights"))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (T.StructType(), "the rows have no columns"),
        (T.StructType().add("a", T.DayTimeIntervalType()), "column 'a' has the type interval day to second"),
        (T.StructType().add("a b", T.LongType()), "column name 'a b' contains ' '"),
        (T.StructType().add("__SPARK_EXT_BODY", T.LongType()), "a column '__SPARK_EXT_BODY', which the exchange uses"),
    ],
)
def test_rows_that_delta_does_not_store(place: Place, schema: T.StructType, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        place.parts().master.register(place.descriptor(schema=schema))
    assert not Path(place.path).exists()


def test_features_that_it_does_not_know(place: Place) -> None:
    Producer(place).claim()
    table = DeltaTable(place.path)
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    for act in (place.parts().master.describe, place.parts().master.log.look):
        with pytest.raises(UnsupportedTableError, match="uses deletionVectors, which an exchange does not write"):
            act()


def test_properties_that_it_does_not_bear(place: Place) -> None:
    Producer(place).claim()
    DeltaTable(place.path).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedTableError, match=r"uses delta\.appendOnly"):
        place.parts().master.describe()


def test_the_kind_at_a_place(tmp_path: Path) -> None:
    assert kind_at(str(tmp_path / "nothing")) == "arrow"
    for kind in ("arrow", "delta"):
        place = Place(kind, str(tmp_path / kind))
        Producer(place).claim()
        assert kind_at(place.path) == kind
    with pytest.raises(ConfigurationError, match="unknown exchange kind 'other'"):
        parts("other", str(tmp_path), WHO)
    with pytest.raises(ConfigurationError, match="use the kind 'delta'"):
        parts("arrow", "s3://bucket/exchange", WHO)


def test_names_of_files() -> None:
    assert incarnation_of("data/i12-e3-p0-a17-0123abcd.parquet") == 12
    assert incarnation_of("data/entry-7-0123abcd.parquet") == 7
    assert incarnation_of("data/part-x.parquet") is None
    assert incarnation_of("x/i12-e3-p0-a17-0123abcd.parquet") is None


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"add": {"path": "x", "partitionValues": {}}}'])
def test_commits_of_others(line: bytes) -> None:
    with pytest.raises(StateError, match="damaged"):
        read_commit(line, WHO)
