"""Conformance of the source `postgres`: each of its ways runs the contract kit."""

from __future__ import annotations

import pytest

from spark_ext.testing.source_contract import SourceContract, SourceWorld
from spark_ext.testing.source_queries import SourceQueryContract
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_kit import PostgresWorld


@pytest.mark.core
class TestPostgres(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database)


class TestPostgresQuery(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database, table="", query="SELECT * FROM t WHERE id > 0", key="word")


class TestPostgresBySeveralColumns(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database, key="word,id", where="id > 0")


class TestPostgresByTransaction(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database, incremental="xmin")


class TestPostgresByColumn(SourceContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database, incremental="column", incremental_column="at")


class TestPostgresInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database)
