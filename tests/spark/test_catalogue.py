"""What a catalogue says about a table, and names that are none. With Spark: `tests/queries/test_named_tables.py`."""

from typing import Any

import pytest

from spark_ext.errors import ConfigurationError
from spark_ext.spark.session.catalogue import details, local, resolve

ROWS = (
    ("Location", "string", None),  # a column
    ("", "", ""),
    ("# Detailed Table Information", "", ""),
    ("Type", "EXTERNAL", ""),
    ("Location", "file:/t/sales 1", ""),
    ("Provider", "delta", ""),
)


def test_columns_are_not_taken_for_facts_about_the_table() -> None:
    assert details(ROWS) == {"Type": "EXTERNAL", "Location": "file:/t/sales 1", "Provider": "delta"}


@pytest.mark.parametrize(
    ("location", "path"),
    [("file:/t/sales 1", "/t/sales 1"), ("file:///t/50%", "/t/50%"), ("s3://bucket/t", "s3://bucket/t"), ("/t", "/t")],
)
def test_a_local_location_is_a_path(location: str, path: str) -> None:
    assert local(location) == path


@pytest.mark.parametrize("name", ["", "a b", "a; DROP TABLE b", "a.b PARTITION (c = 1)", "`a", "a.", "out/daily"])
def test_what_is_no_name_never_reaches_sql(name: str) -> None:
    session: Any = None
    with pytest.raises(ConfigurationError, match="is not the name of a table"):
        resolve(session, name, "job 'j', query 'q'")
