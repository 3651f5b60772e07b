"""`postgres_2pc` and the source `postgres`: texts, whatever encodings server, database, role and environment prefer."""

from collections.abc import Iterator

import pytest

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.sink_bad_rows import BadRowsKit
from spark_ext.testing.sink_driver import NUMBERS, Driver
from spark_ext.testing.source_kit import drive
from tests.servers.postgres import USER, Database, PostgresServer
from tests.sinks.postgres_2pc.postgres_kit import WAYS, PostgresTarget

pytestmark = pytest.mark.usefixtures("states")

WORDS = columns("id bigint, `größe` string")
WORD = "Möhre ÿ"


@pytest.fixture
def encoded(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Database]:
    made = postgres.database(request.param)
    yield made
    postgres.drop(made)


PREFERRED = [
    # encoding of the database, and what prefers another one
    *((encoding, "") for encoding in ("LATIN1", "WIN1252", "SQL_ASCII")),
    *(("UTF8", how) for how in ("database", "role", "environment", "options", "address")),
]


@pytest.mark.parametrize(("encoded", "how"), PREFERRED, indirect=["encoded"])
def test_texts_arrive_as_they_are(encoded: Database, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ""
    if how == "database":
        encoded.run(f"ALTER DATABASE {encoded.name} SET client_encoding = 'LATIN1'")
    elif how == "role":
        encoded.run(f"ALTER ROLE {USER} IN DATABASE {encoded.name} SET client_encoding = 'LATIN1'")
    elif how == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    elif how == "options":
        monkeypatch.setenv("PGOPTIONS", "-c client_encoding=LATIN1")
    elif how == "address":
        address = "?client_encoding=LATIN1"
    rows = [{"id": n, "größe": f"{WORD} {n:03}"} for n in range(40)]
    for way, given in WAYS.items():
        target = PostgresTarget(encoded, way, **given)
        target.dsn += address
        Driver(target, uid=way, schema=WORDS).claim().run(0, rows, partitions=2)
        with encoded.connect(client_encoding="utf8") as connection:
            said = connection.execute(f"SELECT id, convert_to(größe, 'UTF8') FROM {way} ORDER BY id").fetchall()
        assert said == [(row["id"], str(row["größe"]).encode()) for row in rows], way
    with encoded.connect(client_encoding="utf8") as connection:
        connection.execute("ALTER TABLE staged ADD PRIMARY KEY (größe)")
        connection.execute("ANALYZE staged")
    source = {"uid": "in", "dsn": encoded.dsn + address, "table": "staged", "key": "größe", "rows_per_channel": "9"}
    assert sorted(drive(Postgres, source).all_rows().to_pylist(), key=lambda row: row["id"]) == rows


@pytest.mark.parametrize("encoded", ["LATIN1"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_a_character_that_the_server_does_not_have_is_refused(encoded: Database, way: str) -> None:
    rows = [{"id": n, "name": "1 €" if n == 2 else "ä"} for n in range(5)]
    one = Driver(PostgresTarget(encoded, **WAYS[way]), schema=NUMBERS, options={"redact": "true"}).claim()
    with pytest.raises(DataError, match=r"(?s)row 3, column 'name'.*no equivalent in encoding") as refused:
        one.run(0, rows)
    assert "0xe2" not in str(refused.value), "a part of the value"
    assert one.target.ids() == []
    if way != "prepared":
        kit = BadRowsKit(PostgresTarget(encoded, "other", **WAYS[way]))
        kit.driver().claim().run(0, rows)
        kit.settle(0)
        assert (kit.target.ids(), kit.table()) == ([0, 1, 3, 4], [2])


def test_statements_that_change_the_encoding_are_refused(database: Database) -> None:
    one = Driver(PostgresTarget(database, pre_sql="SET client_encoding = 'LATIN1'"), schema=NUMBERS).claim()
    with pytest.raises(ConfigurationError, match="'pre_sql' sets client_encoding"):
        one.run(0, [{"id": 1, "name": WORD}])
    assert one.target.ids() == []
