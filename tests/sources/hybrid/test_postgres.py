"""`hybrid` over a PostgreSQL table that holds the beginning of a log, in key ranges, and the log itself."""

from __future__ import annotations

import random

import pytest

from spark_ext.sources.hybrid.source import Hybrid
from spark_ext.testing.source_kit import drive
from tests.servers.postgres import PASSWORD, Database
from tests.sources.hybrid.test_hybrid import HISTORY, ROWS, log


@pytest.mark.parametrize("seed", range(3))
def test_each_row_is_there_once_across_the_seam(database: Database, seed: int) -> None:
    rows = [row for row in log() if row["seq"] < HISTORY[row["channel"]]]
    random.Random(seed).shuffle(rows)
    database.run("CREATE TABLE history (id bigint PRIMARY KEY, channel int, seq bigint, tag text)")
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO history VALUES (%s, %s, %s, %s)",
            [(row["id"], row["channel"], row["seq"], row["tag"]) for row in rows],
        )
    database.run("ANALYZE history")
    given = {
        "uid": "hybrid",
        "stages": "history,live",
        "history.format": "postgres",
        "history.table": "history",
        "history.rows_per_channel": "8",
        "history.seam": "channel:seq",
        **{f"history.{name}": value for name, value in database.options.items()},
        "live.format": "datagen",
        "live.rows_of": ",".join(map(str, ROWS)),
        "live.select": "id, channel, seq, tag",
    }
    trace = drive(Hybrid, given, rng=random.Random(seed), crash=0.3)
    assert sorted(row["id"] for row in trace.all_rows().to_pylist()) == sorted(row["id"] for row in log())
    assert PASSWORD not in f"{Hybrid(given).options.public()}"
