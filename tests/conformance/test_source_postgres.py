"""Conformance of the source `postgres`: each of its ways runs the contract kit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_ext.testing.source_contract import SourceContract, SourceWorld
from spark_ext.testing.source_queries import SourceQueryContract
from tests.servers.postgres import Database, PostgresServer
from tests.sources.postgres.postgres_kit import PostgresWorld


def world_of(server: PostgresServer, **options: str) -> Iterator[SourceWorld]:
    """For all tests of a class, which only read it."""
    database = server.database()
    yield PostgresWorld(database, **options)
    server.drop(database)


@pytest.fixture(scope="module")
def whole(postgres: PostgresServer) -> Iterator[SourceWorld]:
    yield from world_of(postgres)


@pytest.fixture(scope="module")
def of_query(postgres: PostgresServer) -> Iterator[SourceWorld]:
    yield from world_of(postgres, table="", query="SELECT * FROM t WHERE id > 0", key="word")


@pytest.fixture(scope="module")
def by_columns(postgres: PostgresServer) -> Iterator[SourceWorld]:
    yield from world_of(postgres, key="word,id", where="id > 0")


@pytest.fixture(scope="module")
def by_transaction(postgres: PostgresServer) -> Iterator[SourceWorld]:
    yield from world_of(postgres, incremental="xmin")


@pytest.fixture(scope="module")
def by_column(postgres: PostgresServer) -> Iterator[SourceWorld]:
    yield from world_of(postgres, incremental="column", incremental_column="at")


@pytest.mark.core
class TestPostgres(SourceContract):
    @pytest.fixture
    def world(self, whole: SourceWorld) -> SourceWorld:
        return whole


class TestPostgresQuery(SourceContract):
    @pytest.fixture
    def world(self, of_query: SourceWorld) -> SourceWorld:
        return of_query


class TestPostgresBySeveralColumns(SourceContract):
    @pytest.fixture
    def world(self, by_columns: SourceWorld) -> SourceWorld:
        return by_columns


class TestPostgresByTransaction(SourceContract):
    @pytest.fixture
    def world(self, by_transaction: SourceWorld) -> SourceWorld:
        return by_transaction


class TestPostgresByColumn(SourceContract):
    @pytest.fixture
    def world(self, by_column: SourceWorld) -> SourceWorld:
        return by_column


class TestPostgresInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database)
