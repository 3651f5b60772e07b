"""Conformance, "Commit", of `postgres_2pc`: with staging tables, with prepared transactions, inline, and as upsert."""

from __future__ import annotations

from typing import Any

import pytest

from spark_ext.testing import every_type
from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import Driver, SinkTarget, table
from spark_ext.testing.sink_queries import SinkQueryContract
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import PostgresTarget
from tests.support.contracts import SAME_IN_ALL_MODES, without


@pytest.mark.core
class TestPostgres2pcStaged(SinkContract):
    @pytest.fixture
    def target(self, database: Database) -> SinkTarget:
        return PostgresTarget(database)


class PreparedTarget(PostgresTarget):
    """The commit has a further step, at which a driver may die: after the decision."""

    points = (*PostgresTarget.points, "postgres.part_committed")


@without(*SAME_IN_ALL_MODES)
class TestPostgres2pcPrepared(SinkContract):
    @pytest.fixture
    def target(self, database: Database) -> SinkTarget:
        return PreparedTarget(database, prepared="true")


class InlineTarget(PostgresTarget):
    """The rows travel in the commit message."""

    stages = False


@without(*SAME_IN_ALL_MODES)
class TestPostgres2pcInline(SinkContract):
    @pytest.fixture
    def target(self, database: Database) -> SinkTarget:
        return InlineTarget(database, inline_size="64m")


class StatementsTarget(PostgresTarget):
    """With statements in each transaction, and a further step of a start."""

    points = (*PostgresTarget.points, "postgres.ready")


@without(*SAME_IN_ALL_MODES)
class TestPostgres2pcWithStatements(SinkContract):
    @pytest.fixture
    def target(self, database: Database) -> SinkTarget:
        log = "INSERT INTO log VALUES (now())"
        return StatementsTarget(
            database,
            setup_sql="CREATE TABLE IF NOT EXISTS log (at timestamptz)",
            pre_sql=log,
            post_sql=log,
            schema_evolution="add_columns",
        )


class TestPostgres2pcGerman:
    """The values, with settings under which the server reads and shows them otherwise."""

    test_c9_nulls = SinkContract.test_c9_nulls
    test_c9_every_supported_type = SinkContract.test_c9_every_supported_type
    test_bad_rows = SinkContract.test_bad_rows_go_to_the_table_with_the_commit_of_their_epoch

    _states_of_its_own = SinkContract._states_of_its_own
    dirty = SinkContract.dirty

    @pytest.fixture(params=["staged", "inline"])
    def target(self, german_database: Database, request: pytest.FixtureRequest) -> SinkTarget:
        if request.param == "inline":
            return InlineTarget(german_database, inline_size="64m")
        return PostgresTarget(german_database)


@without(*SAME_IN_ALL_MODES)
class TestPostgres2pcUpsert(SinkContract):
    @pytest.fixture
    def target(self, database: Database) -> SinkTarget:
        return PostgresTarget(database, mode="upsert", key="id")

    def test_c9_nulls(self, target: SinkTarget) -> None:
        """The key may not be null; the other column may."""
        driver = Driver(target)
        driver.claim()
        rows: list[dict[str, Any]] = [{"id": 1, "name": None}, {"id": 2, "name": "n"}]
        driver.run(0, rows)
        driver.run(1, [{"id": 2, "name": None}])
        assert sorted(target.rows(), key=str) == [{"id": 1, "name": None}, {"id": 2, "name": None}]

    def test_c9_every_supported_type(self, target: SinkTarget) -> None:
        """Written twice: the second epoch replaces all rows of the first."""
        driver = Driver(target, schema=target.types, options={"key": "long"})
        driver.claim()
        values = [every_type.row(number) for number in range(1, 400, 7)] + [every_type.empty(-1)]
        driver.run(0, [{**every_type.empty(row["long"])} for row in values], partitions=2)
        driver.run(1, values, partitions=2)
        found = table(target.types, target.rows()).sort_by("long")
        assert found.to_pylist() == table(target.types, values).sort_by("long").to_pylist()


class TestPostgres2pcInSpark(SinkQueryContract):
    @pytest.fixture
    def target(self, database: Database) -> SinkTarget:
        return PostgresTarget(database)
