"""Conformance of the source `postgres`: each of its ways runs the contract kit."""

from collections.abc import Iterator
from typing import Any

import pytest

from spark_ext.testing.source_contract import SourceContract, SourceWorld
from spark_ext.testing.source_queries import SourceQueryContract
from tests.servers.postgres import Database, PostgresServer
from tests.sources.postgres.postgres_kit import PostgresWorld


def world_of(**options: str) -> Any:
    """A world for all tests of a class, which only read it."""

    @pytest.fixture(scope="class")
    def world(self: object, postgres: PostgresServer) -> Iterator[SourceWorld]:
        database = postgres.database()
        yield PostgresWorld(database, **options)
        postgres.drop(database)

    return world


@pytest.mark.core
class TestPostgres(SourceContract):
    world = world_of()


class TestPostgresQuery(SourceContract):
    world = world_of(table="", query="SELECT * FROM t WHERE id > 0", key="word")


class TestPostgresBySeveralColumns(SourceContract):
    world = world_of(key="word,id", where="id > 0")


class TestPostgresByTransaction(SourceContract):
    world = world_of(incremental="xmin")


class TestPostgresByColumn(SourceContract):
    world = world_of(incremental="column", incremental_column="at")


class TestPostgresInSpark(SourceQueryContract):
    @pytest.fixture
    def world(self, database: Database) -> SourceWorld:
        return PostgresWorld(database)
