"""What an error of PostgreSQL means for a job."""

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.clients.postgres.connection import ConnectionOptions, Name, Server, columns
from spark_ext.clients.postgres.problems import to_error
from spark_ext.errors import ConfigurationError, DataError, SparkExtError, StorageError

STATES: dict[type[SparkExtError], tuple[str, ...]] = {
    # Among them: an index entry that is too large, a statement too complex, CASE without a match in a trigger, a row
    # that its own trigger changed, null where a function wants a value, damaged pages.
    DataError: ("22012", "23505", "54000", "54001", "20000", "27000", "39004", "XX001", "XX002"),
    ConfigurationError: ("42P01", "53400"),  # temp_file_limit
    StorageError: ("53100", "53300", "55P03", "57P01", "40P01", "XX000"),
}


@pytest.mark.parametrize(("state", "kind"), [(state, kind) for kind, states in STATES.items() for state in states])
def test_errors_that_come_again_are_not_outages(state: str, kind: type[SparkExtError]) -> None:
    """What every attempt meets again stops the query at once; an outage is retried."""
    error = psycopg.DatabaseError("x")
    error.sqlstate = state
    assert type(to_error(error, "who", "kept")) is kind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), DataError),
        (psycopg.ProgrammingError("the query has 1 placeholder but 2 parameters were passed"), ConfigurationError),
        (pa.ArrowInvalid("[libpq] ReadRecord failed at row 0: not supported"), DataError),
        (psycopg.OperationalError("the connection is lost"), StorageError),
        (OSError("[libpq] PQgetCopyData() failed"), StorageError),
    ],
)
def test_errors_of_the_clients_themselves(error: Exception, kind: type[SparkExtError]) -> None:
    assert type(to_error(error, "who", "kept")) is kind


def test_a_lock_that_was_not_granted_is_named() -> None:
    error = to_error(psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"), "who", "kept")
    assert "a lock on the table was not granted in time" in error.what and "ALTER TABLE" in error.do


@pytest.mark.parametrize("dsn", [None, "postgresql://h/d?client_encoding=LATIN1", "client_encoding=WIN1252"])
def test_texts_are_exchanged_as_utf8(dsn: str | None) -> None:
    """In the address, which libpq prefers to the environment, the database and the role."""
    server = Server.of(ConnectionOptions(uid="a", dsn=dsn), "test")
    assert psycopg.conninfo.conninfo_to_dict(server.conninfo)["client_encoding"] == "UTF8"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id", ("id",)), (' id , "Order", ', ("id", "Order")), ('"a, ""b"""', ('a, "b"',)),
        ('a"b, %(id)s', ('a"b', "%(id)s")), ('"open', ('"open',)), ("", ()),
    ],
)  # fmt: skip
def test_columns_as_users_write_them(text: str, names: tuple[str, ...]) -> None:
    assert columns(text) == names


@given(st.lists(st.text(min_size=1), min_size=1))
def test_any_column_may_be_quoted(names: list[str]) -> None:
    assert columns(", ".join('"' + name.replace('"', '""') + '"' for name in names)) == tuple(names)


@pytest.mark.parametrize("text", ["n" * 64, f'"{"ä" * 32}"', f"shop.{'n' * 64}", f"{'s' * 64}.n"])
def test_a_name_that_the_server_would_cut_off_is_refused(text: str) -> None:
    """It would be that of another table."""
    with pytest.raises(ValueError, match="at most 63 bytes"):
        Name.parse(text)
    assert Name.parse("n" * 63).table == "n" * 63
