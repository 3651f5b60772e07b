"""`postgres_2pc` and statements of the user: once for a target, and exactly once with each epoch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ext import failpoints
from spark_ext.errors import CommitError, ConfigurationError, StorageError
from spark_ext.sinks.postgres_2pc.sink import PostgresTwoPhaseCommit
from spark_ext.sinks.postgres_2pc.statements import check, split
from spark_ext.testing.sink_driver import Driver, numbered
from tests.servers.postgres import Database
from tests.sinks.postgres_2pc.postgres_kit import PostgresTarget

SETUP = "CREATE INDEX made_once ON out (id); INSERT INTO log VALUES ('setup')"
PRE = "INSERT INTO log SELECT 'pre ' || count(*) FROM out"
POST = "INSERT INTO log SELECT 'post ' || count(*) FROM out"


@pytest.fixture
def database(database: Database) -> Database:
    database.run("CREATE TABLE log (what text)")
    return database


def driver(database: Database, incarnation: int = 1, **options: str) -> Driver:
    return Driver(PostgresTarget(database, **options), incarnation)


def log(database: Database) -> list[str]:
    return database.column("SELECT what FROM log")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT 1; ;UPDATE t SET a = 'COMMIT; ' || \"ROLLBACK\"", [["SELECT"], ["UPDATE", "T", "SET", "A", "", ""]]),
        ("-- COMMIT;\n/* ROLLBACK; /* x */ ; */ ANALYZE", [["ANALYZE"]]),
        ("DO $$ BEGIN COMMIT; END $$; DO $a$ $$ ; $$ $a$", [["DO"], ["DO"]]),
        (r"SELECT E'\'; COMMIT', 'it''s', $1, a$b$c", [["SELECT", "", "", "A$B$C"]]),
        ("select U&'\\0041' -- ;", [["SELECT", "U", ""]]),
    ],
)
def test_statements_end_outside_of_quotes_and_comments(text: str, words: list[list[str]]) -> None:
    assert split(text) == words


QUOTED = st.text(st.sampled_from("ab;'\"-/*$ \n"), max_size=9)


@given(st.lists(st.sampled_from("'\"$-"), max_size=6), QUOTED)
def test_whatever_is_in_quotes_hides_no_statement_behind_them(kinds: list[str], inside: str) -> None:
    parts = {
        "'": "'" + inside.replace("'", "''") + "'",
        '"': '"' + inside.replace('"', '""') + '"',
        "$": "$q$" + inside + "$q$",
        "-": "--" + inside.replace("\n", "") + "\n",
    }
    text = "SELECT " + " , ".join(parts[kind] for kind in kinds)
    assert len(split(text)) == 1
    assert split(text + "; COMMIT")[-1] == ["COMMIT"]
    with pytest.raises(ValueError, match="it has COMMIT"):
        check(text + "; COMMIT")


@pytest.mark.parametrize("name", ["setup_sql", "pre_sql", "post_sql"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("COMMIT", "it has COMMIT"),
        ("UPDATE t SET a = 1; rollback to x", "it has ROLLBACK"),
        ("/* */ begin", "it has BEGIN"),
        ("SAVEPOINT a", "it has SAVEPOINT"),
        ("PREPARE TRANSACTION 'a'", "it has PREPARE"),
        ("VACUUM out", "it has VACUUM, which PostgreSQL does not execute within a transaction"),
        ("CREATE UNIQUE INDEX CONCURRENTLY ON out (id)", "CREATE ... CONCURRENTLY"),
        ("ALTER SYSTEM SET a = 1", "it has ALTER SYSTEM"),
        ("COPY out FROM STDIN", "STDIN or STDOUT"),
        ("SELECT 'a", "a quote ' is not closed"),
        ("DO $a$ $$", r"a quote \$a\$ is not closed"),
        ("SELECT 1 /* a", "a comment /\\* is not closed"),
        (" ; -- nothing", "it has no statement"),
    ],
)
def test_options_refuse_what_cannot_be_part_of_an_epoch(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{name}': .*{said}"):
        PostgresTwoPhaseCommit({"uid": "out", "table": "out", name: text})


@pytest.mark.parametrize("text", ["REFRESH MATERIALIZED VIEW CONCURRENTLY v", "PREPARE a AS SELECT 1", "CALL p()"])
def test_others_are_taken(text: str) -> None:
    assert check(text) == text


@pytest.mark.parametrize("name", ["pre_sql", "post_sql"])
def test_they_do_not_go_with_prepared_transactions(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} requires prepared=false"):
        PostgresTwoPhaseCommit({"uid": "out", "table": "out", "prepared": "true", name: "SELECT 1"})


@pytest.mark.parametrize("inline", ["0", "1m"], ids=["staged", "inline"])
def test_before_and_after_the_rows_of_each_epoch_that_has_some(database: Database, inline: str) -> None:
    one = driver(database, setup_sql=SETUP, pre_sql=PRE, post_sql=POST, inline_size=inline).claim()
    assert log(database) == ["setup"]
    one.run(0, numbered(0, 5), partitions=2)
    one.run(1, [])
    one.run(2, numbered(5, 7))
    one.run(2, numbered(5, 7))
    assert log(database) == ["setup", "pre 0", "post 5", "pre 5", "post 7"]


@pytest.mark.parametrize("point", ["postgres.before_commit", "postgres.recorded", "postgres.committed"])
def test_a_repeated_epoch_runs_them_once(database: Database, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    options = {"pre_sql": PRE, "post_sql": POST, "commit_attempts": "1"}
    one = driver(database, 1, **options).claim()
    messages = [one.write(0, numbered(0, 5))]
    with monkeypatch.context() as during:
        during.setenv(failpoints.VARIABLE, f"{point}=raise")
        with pytest.raises(Exception, match=r".*"):
            one.commit(messages, 0)
    two = driver(database, 2, **options).claim()
    two.run(0, numbered(0, 5))
    assert log(database) == ["pre 0", "post 5"]
    assert two.target.ids() == list(range(5))


@pytest.mark.parametrize("point", ["postgres.fenced", "postgres.cleaned", "postgres.ready"])
def test_an_interrupted_setup_runs_once(database: Database, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    with monkeypatch.context() as during:
        during.setenv(failpoints.VARIABLE, f"{point}=raise")
        with pytest.raises(Exception, match=r".*"):
            driver(database, setup_sql=SETUP).claim()
    for incarnation in (2, 3):
        driver(database, incarnation, setup_sql=SETUP).claim()
    assert log(database) == ["setup"]


def test_another_setup_runs_once_too_and_each_uid_has_its_own(database: Database) -> None:
    first, second = "INSERT INTO log VALUES ('a')", "INSERT INTO log VALUES ('b')"
    for incarnation, text in enumerate([first, second, first, second], 1):
        driver(database, incarnation, setup_sql=text).claim()
    assert log(database) == ["a", "b"]
    Driver(PostgresTarget(database, setup_sql=first), uid="other", job_id="job-2").claim()
    assert log(database) == ["a", "b", "a"]
    assert database.column("SELECT count(*) FROM spark_ext.setups WHERE hash LIKE '%INSERT%'") == [0]


def test_outside_a_job_the_setup_runs_with_the_first_epoch(database: Database) -> None:
    one = driver(database, 0, setup_sql=SETUP, post_sql=POST)
    one.run(0, numbered(0, 5))
    one.run(1, numbered(5, 7))
    assert log(database) == ["setup", "post 5", "post 7"]


def test_a_statement_that_fails_leaves_nothing_of_the_epoch(database: Database) -> None:
    one = driver(database, post_sql="UPDATE nowhere SET a = 1").claim()
    with pytest.raises(ConfigurationError, match=r"does not execute the option 'post_sql': .*nowhere.* does not exist"):
        one.run(0, numbered(0, 5))
    assert one.target.ids() == []
    one = driver(database, post_sql="INSERT INTO log VALUES (1/0)")
    with pytest.raises(ConfigurationError, match="'post_sql': division by zero"):
        one.run(0, numbered(0, 5))
    driver(database).run(0, numbered(0, 5))
    assert one.target.ids() == list(range(5))


def test_a_setup_that_fails_is_tried_again_by_the_next_start(database: Database) -> None:
    with pytest.raises(ConfigurationError, match="'setup_sql'"):
        driver(database, 1, setup_sql="INSERT INTO log VALUES ('a'), (nowhere)").claim()
    assert log(database) == []
    driver(database, 2, setup_sql=SETUP).claim()
    assert log(database) == ["setup"]


def test_a_transaction_whose_end_the_check_missed_is_reported(database: Database) -> None:
    """By a setting of the server, a backslash hides a quote."""
    database.run(f'ALTER DATABASE "{database.name}" SET standard_conforming_strings = off')
    one = driver(database, post_sql=r"SELECT 'a\''; COMMIT; SELECT '").claim()
    with pytest.raises(Exception, match=r"option 'post_sql' has ended the transaction|does not execute the option"):
        one.run(0, numbered(0, 5))


def test_too_slow_a_statement_is_transient_and_names_the_option(database: Database) -> None:
    one = driver(database, post_sql="SELECT pg_sleep(30)", statement_timeout="200", commit_attempts="1").claim()
    with pytest.raises(CommitError, match=r"longer than statement_timeout") as failed:
        one.run(0, numbered(0, 5))
    assert isinstance(failed.value.__cause__, StorageError) or "STORAGE" in str(failed.value)
    assert one.target.ids() == []


def test_a_limit_of_the_role_is_lifted_by_zero(database: Database) -> None:
    database.run(f'ALTER DATABASE "{database.name}" SET statement_timeout = 300')
    one = driver(database, post_sql="SELECT pg_sleep(0.5)", statement_timeout="0").claim()
    one.run(0, numbered(0, 5))
    assert one.target.ids() == list(range(5))
