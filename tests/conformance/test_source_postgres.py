"""Conformance of the source `postgres`: each of its ways runs the contract kit."""

from __future__ import annotations

import pytest

from spark_ext.testing.source_contract import SourceContract, SourceWorld
from spark_ext.testing.source_queries import SourceQueryContract
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_kit import PostgresWorld


class TestPostgres(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database)


# Of further modes: what they do in another way. All of it with `make test-all`.
@pytest.mark.extended_but("dies_at_every_step", "_r6_")
class TestPostgresQuery(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database, table="", query="SELECT * FROM t WHERE id > 0", key="word")


@pytest.mark.extended_but("_r6_")
class TestPostgresBySeveralColumns(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database, key="word,id", where="id > 0")


@pytest.mark.extended_but("dies_at_every_step", "_r1_", "_r2_", "_r6_")
class TestPostgresByTransaction(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database, incremental="xmin")


@pytest.mark.extended_but("dies_at_every_step", "_r1_", "_r2_", "_r6_")
class TestPostgresByColumn(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database, incremental="column", incremental_column="at")


@pytest.mark.extended
class TestPostgresInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database)
