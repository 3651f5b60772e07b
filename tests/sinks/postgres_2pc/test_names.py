"""`postgres_2pc`: columns with the names of our SQL's aliases, and names that are too long."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import types as T

from spark_ext.errors import ConfigurationError
from spark_ext.testing.sink_bad_rows import BadRowsKit
from spark_ext.testing.sink_driver import NUMBERS, STATES
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import WAYS, PostgresTarget


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_EXT_REGISTRY", str(tmp_path / "registry"))
    monkeypatch.setenv(STATES, str(tmp_path / "states"))


NAMES = ("r", "s", "t", "e", "excluded", "spark_ext_row", "spark_ext_row_", 'q"uote', "n" * 63)


@pytest.mark.parametrize("way", ["staged", "inline", "upsert"])
@pytest.mark.parametrize("missing", [False, True])
def test_columns_with_the_names_of_aliases(database: Database, way: str, missing: bool) -> None:
    """Also in the row that is put aside, and if the column `r`, or the one that the rows are numbered by, is there."""
    names = NAMES[1:] if missing else NAMES
    schema = T.StructType([*NUMBERS.fields, *(T.StructField(name, T.StringType()) for name in names)])
    shown = ", ".join('"' + name.replace('"', '""') + '" text' for name in names)
    database.run(f"CREATE TABLE out (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), {shown})")
    more = {"mode": "upsert", "key": '"id"', "latest_by": '"e"'} if way == "upsert" else WAYS[way]
    kit = BadRowsKit(PostgresTarget(database, **more), schema)
    rows = [{"id": n, "name": "bad" if n % 7 == 3 else "n", **dict.fromkeys(names, f"v{n}")} for n in range(20)]
    one = kit.driver()
    one.claim()
    one.run(0, rows)
    kit.settle(0)
    assert kit.table() == [3, 10, 17]
    kept = sorted(database.table("out"), key=lambda row: row["id"])
    assert kept == [row for row in rows if row["name"] != "bad"]


def test_names_that_the_server_would_cut_off_are_refused(database: Database) -> None:
    """Before a table is made."""
    one = PostgresTarget(database).sink()
    with pytest.raises(ConfigurationError, match="at most 63 bytes"):
        one.validate(T.StructType([T.StructField("n" * 255, T.StringType())]))
    with pytest.raises(ConfigurationError, match="at most 63 bytes"):
        PostgresTarget(database, "n" * 64).sink()
    assert database.column("SELECT relname FROM pg_class WHERE relname LIKE 'nnn%'") == []
