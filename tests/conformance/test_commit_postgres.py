"""Conformance, "Commit", of `postgres_2pc`: with staging tables, with prepared transactions, inline, and as upsert."""

import pytest

from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import SinkTarget
from spark_ext.testing.sink_queries import SinkQueryContract
from tests.conformance.test_commit_delta import UpsertValues
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
            database, setup_sql="CREATE TABLE IF NOT EXISTS log (at timestamptz)", pre_sql=log, post_sql=log,
            schema_evolution="add_columns",
        )  # fmt: skip


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
class TestPostgres2pcUpsert(UpsertValues, SinkContract):
    @pytest.fixture
    def target(self, database: Database) -> SinkTarget:
        return PostgresTarget(database, mode="upsert", key="id")


class TestPostgres2pcInSpark(SinkQueryContract):
    @pytest.fixture
    def target(self, database: Database) -> SinkTarget:
        return PostgresTarget(database)
