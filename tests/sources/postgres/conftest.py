"""Tables and databases of the tests of the source `postgres`."""

from collections.abc import Iterator

import pytest

from tests.servers.postgres import Database, PostgresServer


@pytest.fixture(scope="module")
def german(postgres: PostgresServer) -> Iterator[Database]:
    """A database for many tests, whose values are shown otherwise than in the sessions of the source."""
    made = postgres.german()
    yield made
    postgres.drop(made)


@pytest.fixture
def table(database: Database) -> Database:
    database.run(
        "CREATE SEQUENCE ticks",
        "CREATE TABLE t (id bigserial PRIMARY KEY, word text, at timestamptz DEFAULT now(), "
        "tick bigint DEFAULT nextval('ticks') / 7)",
        "INSERT INTO t (word) SELECT 'w' || n FROM generate_series(1, 20) n",
        "ANALYZE t",
    )
    return database
