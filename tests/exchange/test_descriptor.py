"""The description of an exchange: what may change, what must not, and what is no description."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructField, StructType, TimestampType

from spark_ext.errors import ConfigurationError, StateError
from spark_ext.exchange.arrow import arrow_parts
from spark_ext.exchange.descriptor import VERSION, Descriptor, event_times, nullable
from spark_ext.model.end_of_input import DELAY, PRODUCERS_DELAY
from spark_ext.schemas.ddl import columns
from spark_ext.storage import LocalFolder

GOLDEN = Path(__file__).parents[1] / "golden" / "exchange" / "descriptor-v1.json"


def described(text: str = "id bigint, at timestamp, tags array<string>", **changes: Any) -> Descriptor:
    given: dict[str, Any] = {
        "name": "flights", "id": "00c0ffee", "job_id": "j1", "kind": "arrow", "partitions": 16, "key": ("id",),
        "columns": nullable(columns(text)).jsonValue(), "max_in_flight": 1000, "keep": 60_000,
    }  # fmt: skip
    return Descriptor(**(given | changes))


def test_it_is_written_and_read_as_in_its_golden_file() -> None:
    assert VERSION == 1
    stored = GOLDEN.read_text(encoding="utf-8")
    assert json.loads(described().to_json()) == json.loads(stored)
    assert Descriptor.from_json(stored, "e") == described()


def test_what_may_change_is_taken_over_and_its_id_stays() -> None:
    wanted = described(id="another", max_in_flight=None, keep=0)
    assert described().merged(wanted) == replace(described(), max_in_flight=None, keep=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "copy"}, "name of the exchange is flights, but the job now specifies copy"),
        ({"kind": "delta"}, "kind of the exchange is arrow, but the job now specifies delta"),
        ({"partitions": 8}, "partitions of the exchange is 16, but the job now specifies 8"),
        ({"key": ()}, "key of the exchange is id, but the job now specifies none"),
        ({"text": "id int, at timestamp, tags array<string>"}, "'id' of the exchange is bigint, but .* specifies int"),
        ({"text": "id bigint, tags array<string>"}, "'at' of the exchange is timestamp, but .* specifies missing"),
        ({"text": "id bigint, at timestamp, tags array<string>, more int"}, "'more' of the exchange is missing, but"),
        ({"text": "id bigint, at timestamp, tags array<int>"}, "'tags' of the exchange is array<string>, but the job"),
        ({"text": "at timestamp, id bigint, tags array<string>"}, "the order of the columns of the exchange is id, at"),
        ({"job_id": "j2"}, "belongs to another job"),
        ({"job_id": ""}, "belongs to another job"),
    ],
)
def test_what_must_not_change_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        described().merged(described(**changes))
    assert caught.value.operator == "exchange 'flights'"


def test_constraints_on_nulls_are_not_part_of_a_schema() -> None:
    strict = columns("id bigint not null, s struct<x: int not null>")
    assert nullable(strict) == columns("id bigint, s struct<x: int>")


def test_the_watermark_of_a_column_is_kept_as_its_producers() -> None:
    """Spark must not take it for one of its own, and it does not pass a query without a watermark."""
    at, window = {DELAY: 5000}, StructType([StructField("end", TimestampType(), metadata={DELAY: 5000})])
    given = StructType([StructField("at", TimestampType(), metadata=at), StructField("w", window, metadata=at)])
    kept = nullable(given)
    assert event_times(kept) == {"at": 5000} and DELAY not in str(kept.jsonValue()).replace(PRODUCERS_DELAY, "")
    assert event_times(nullable(kept)) == {}
    older, newer = (described(columns=one.jsonValue()) for one in (nullable(kept), kept))
    assert event_times(older.merged(newer).schema) == {"at": 5000}


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"name": "x"}', '{"version": 1}', '{"version": 1, "key": []}'])
def test_what_is_no_description_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "exchange.json").write_text(text)
    with pytest.raises(StateError, match="not an exchange of this package, or it is damaged"):
        arrow_parts(LocalFolder(tmp_path), "exchange 'e'").master.register(described())
    assert [file.name for file in tmp_path.iterdir()] == ["exchange.json"]


def test_a_newer_version_and_a_lost_description_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="has version 2; this release reads version 1"):
        Descriptor.from_json(described().to_json().replace('"version": 1', '"version": 2'), "e")
    (tmp_path / "log").mkdir()
    with pytest.raises(StateError, match=r"'log' and no exchange\.json"):
        arrow_parts(LocalFolder(tmp_path), "e").master.register(described())


def test_it_is_made_once_whatever_tasks_have_left_before(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / ".draft-0-x").touch()
    master = arrow_parts(LocalFolder(tmp_path), "e").master
    assert master.describe() is None
    assert master.register(described()) == described()
    assert master.register(described(id="other", keep=5)) == described(keep=5)
    assert arrow_parts(LocalFolder(tmp_path), "e").master.describe() == described(keep=5)
