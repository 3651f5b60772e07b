"""Worlds of the source `postgres`: a table in key ranges, a query, and tables that grow."""

from typing import Any

from pyspark.sql.types import StructType

from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import ChannelSource
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_contract import SourceWorld
from tests.servers.postgres import PASSWORD, Database


class PostgresWorld(SourceWorld):
    """43 rows in ranges of about 10, with holes between the keys."""

    def __init__(self, database: Database, **options: str) -> None:
        self.database = database
        given = {"table": "t", "rows_per_channel": "10", "poll_interval": "0", **options}
        self.given = {name: value for name, value in given.items() if value}
        database.run(
            "CREATE TABLE t (id int PRIMARY KEY, word text, at timestamptz DEFAULT now(), price numeric(8,2))",
            "INSERT INTO t SELECT n * 3, 'w' || n, '2024-01-01Z'::timestamptz + n * interval '1 hour', n / 4.0 "
            "FROM generate_series(1, 43) n",
            "ANALYZE t",
        )

    @property
    def secrets(self) -> tuple[str, ...]:
        return (PASSWORD,)

    def source(self, **options: str) -> ChannelSource:
        return Postgres({"uid": "pg", "dsn": self.database.dsn, **self.given, **options})

    def expected(self) -> list[dict[str, Any]]:
        return self.database.table("t")

    def misfits(self) -> list[StructType]:
        return [columns("id int, word bigint"), columns("id int, nowhere string"), columns("id smallint, word string")]
