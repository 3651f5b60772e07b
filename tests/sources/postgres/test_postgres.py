"""The source `postgres`: snapshots and replays, increments that miss nothing, types, and what is refused."""

import datetime
import random
from decimal import Decimal
from typing import Any

import pytest

from spark_ext.errors import DataError, ReplayError, StorageError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Committed
from spark_ext.sources.postgres.ranges import parse
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import GROWING, WAYS, ids, options, rows, run, to_rest

UTC = datetime.timezone.utc


def test_a_run_reads_the_table_as_it_was_at_its_beginning(table: Database) -> None:
    """All ranges in one snapshot: what is changed meanwhile is not seen, while the planner lives."""
    found = run(table, limit=4, rows_per_channel="5")
    assert found.epoch()
    table.run("UPDATE t SET word = 'new'", "DELETE FROM t WHERE id > 15", "INSERT INTO t (word) VALUES ('more')")
    to_rest(found)
    assert found.offset.ended
    assert sorted(row["word"] for row in rows(found)) == sorted(f"w{n}" for n in range(1, 21))


def test_the_snapshot_is_given_up_once_all_rows_are_safe(table: Database) -> None:
    """So that the server can clean up, however long the query's other sources continue."""
    found = run(table, limit=12, rows_per_channel="5")
    held = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
    to_rest(found)
    assert table.column(held) == [1], "the last epoch may still be read"
    found.source.on_epoch_committed(Committed.of(found.offset, final=False))
    assert table.column(held) == [0]


def test_a_replay_after_a_crash_gives_the_same_rows_and_new_ones(table: Database) -> None:
    """The snapshot is gone with the planner; rows that were inserted since are distinguished by their transaction."""
    found = run(table, limit=12, rows_per_channel="5")
    assert found.epoch()
    table.run(
        "DELETE FROM t WHERE id = 20", "INSERT INTO t (id, word) SELECT 100 + n, 'more' FROM generate_series(1, 5) n"
    )
    table.run("INSERT INTO t (id, word) VALUES (0, 'before all'), (-1, 'before all')")
    found.replay()


@pytest.mark.parametrize("change", ["UPDATE t SET word = 'x' WHERE id = 3", "DELETE FROM t WHERE id = 3"])
def test_a_replay_that_cannot_give_the_same_rows_is_refused(table: Database, change: str) -> None:
    found = run(table)
    assert found.epoch()
    table.run(change)
    with pytest.raises(ReplayError, match="20 were planned") as refused:
        found.replay()
    assert "channel" in refused.value.operator and "nothing of this one was committed" in refused.value.kept


def test_a_query_is_identified_by_the_text_of_its_rows(table: Database) -> None:
    found = run(table, query="SELECT id, word FROM t WHERE id <= 15;", key="id", rows_per_channel="5")
    assert found.epoch()
    table.run("UPDATE t SET word = 'x' WHERE id = 16")
    found.replay()
    table.run("UPDATE t SET word = 'x' WHERE id = 15")
    with pytest.raises(ReplayError, match="some of them changed"):
        found.replay()


def test_ranges_never_started_are_cut_anew_and_cover_the_rest(table: Database) -> None:
    """After a restart, with other statistics: no row is left out, and none is read twice."""
    found = run(table, limit=3, rows_per_channel="4")
    for _ in range(3):
        assert found.epoch()
    assert found.trace.finished and len(ids(found)) < 20
    table.run("INSERT INTO t (id, word) SELECT 1000 + n, 'late' FROM generate_series(1, 400) n", "ANALYZE t")
    found.restart()
    to_rest(found)
    assert ids(found) == [*range(1, 21), *range(1001, 1401)]


def test_statistics_decide_how_many_ranges_there_are(table: Database) -> None:
    table.run("INSERT INTO t (word) SELECT 'w' FROM generate_series(1, 9980)", "ANALYZE t")
    found = [parse(channel.id)[1] for channel in Postgres(options(table, rows_per_channel="1000")).discover()]
    assert 8 <= len(found) <= 14
    sizes = [
        table.column(f"SELECT count(*) FROM t WHERE id >= {one.low or 0} AND id < {int(str(one.high)) + one.last}")[0]
        for one in found
    ]
    assert sum(sizes) == 10_000 and max(sizes) <= 2_000


@pytest.mark.parametrize("way", GROWING.values(), ids=GROWING)
def test_rows_that_are_committed_late_are_not_missed(table: Database, way: dict[str, Any]) -> None:
    """Drawn before and committed after others that were read: with savepoints, two-phase commit, and a rollback."""
    found = run(table, **way)
    to_rest(found)
    with table.connect() as late, table.connect() as lost:
        late.execute("BEGIN")
        late.execute("SAVEPOINT s")
        late.execute("INSERT INTO t (word) VALUES ('late')")
        late.execute("RELEASE SAVEPOINT s")
        lost.execute("BEGIN")
        lost.execute("INSERT INTO t (word) VALUES ('lost')")
        table.run("INSERT INTO t (word) VALUES ('early')")
        to_rest(found)
        assert 21 not in ids(found)
        found.restart()
        to_rest(found)
        late.execute("SAVEPOINT again")
        late.execute("INSERT INTO t (word) VALUES ('late as well')")
        late.execute("PREPARE TRANSACTION 'late'")
        lost.execute("ROLLBACK")
    to_rest(found)
    table.run("COMMIT PREPARED 'late'")
    to_rest(found)
    assert ids(found) == [*range(1, 21), 21, 23, 24]


@pytest.mark.parametrize("way", GROWING.values(), ids=GROWING)
def test_a_planner_that_looks_for_channels_again_reads_all_rows_once(table: Database, way: dict[str, Any]) -> None:
    found = run(table, discovery_interval="0", rows_per_channel="15", **way)
    for _ in range(3):
        to_rest(found)
        table.run("INSERT INTO t (word) SELECT 'later' FROM generate_series(1, 40)", "ANALYZE t")
    to_rest(found)
    assert ids(found) == list(range(1, 141))


@pytest.mark.parametrize("way", GROWING.values(), ids=GROWING)
@pytest.mark.parametrize("seed", range(2))
def test_a_table_that_grows_under_random_crashes(table: Database, way: dict[str, Any], seed: int) -> None:
    """Transactions that overlap, while epochs are planned, lost and replayed: each row once."""
    chance = random.Random(seed)
    writers = [table.connect() for _ in range(3)]
    inside = [False] * 3

    def write(epoch: int) -> None:
        for number, writer in enumerate(writers):
            if not inside[number] and epoch < 25:
                writer.execute("BEGIN")
                inside[number] = True
            if inside[number]:
                writer.execute("INSERT INTO t (word) SELECT 'x' FROM generate_series(1, %s)", (chance.randint(0, 4),))
                if epoch >= 25 or chance.random() < 0.4:
                    writer.execute(chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
                    inside[number] = False

    found = SourceRun(Postgres, options(table, rows_per_channel="7", **way), rng=chance)
    assert found.epoch()
    for epoch in range(40):
        write(epoch)
        if chance.random() < 0.3:
            found.restart()
        if found.epoch() and chance.random() < 0.3:
            found.replay()
    to_rest(found)
    for writer in writers:
        writer.close()
    assert ids(found) == sorted(table.column("SELECT id FROM t"))


def test_an_update_is_read_as_a_new_row_by_its_transaction(table: Database) -> None:
    found = run(table, incremental="xmin")
    to_rest(found)
    table.run("UPDATE t SET word = 'new' WHERE id = 7", "DELETE FROM t WHERE id = 8")
    to_rest(found)
    last = [row for row in rows(found) if row["id"] in (7, 8)]
    assert sorted((row["id"], row["word"]) for row in last) == [(7, "new"), (7, "w7"), (8, "w8")]


@pytest.mark.parametrize("way", GROWING.values(), ids=GROWING)
def test_an_available_now_run_reads_what_is_there(table: Database, way: dict[str, Any]) -> None:
    found = run(table, limit=3, now=True, rows_per_channel="4", **way)
    assert found.epoch() and found.epoch()
    table.run("INSERT INTO t (word) SELECT 'more' FROM generate_series(1, 300)", "ANALYZE t")
    found.restart()
    to_rest(found)
    assert not found.offset.ended
    assert ids(found)[:20] == list(range(1, 21))
    table.run("INSERT INTO t (word) VALUES ('last')")
    found.restart()
    to_rest(found)
    assert ids(found) == list(range(1, 322))


def test_it_starts_after_transactions_that_may_add_lower_values(table: Database) -> None:
    given: dict[str, Any] = {"incremental": "column", "incremental_column": "id", "settle_timeout": "100 ms"}
    with table.connect() as late:
        late.execute("BEGIN")
        late.execute("INSERT INTO t (word) VALUES ('late')")
        with pytest.raises(StorageError, match=r"have been open for 0.1 s"):
            run(table, **given).epoch()
        late.execute("COMMIT")
    # With the usual patience: the server's own clean-up may have a transaction open as well.
    found = run(table, **{**given, "settle_timeout": "1 min"})
    to_rest(found)
    assert ids(found) == list(range(1, 22))


@pytest.mark.parametrize(
    ("kind", "value"), [("timestamptz", "infinity"), ("date", "infinity"), ("float8", "NaN"), ("numeric", "Infinity")]
)
def test_an_increasing_column_without_an_end_is_refused(table: Database, kind: str, value: str) -> None:
    table.run(f"ALTER TABLE t ADD x {kind}", "UPDATE t SET x = '-infinity'")
    way: dict[str, Any] = {"incremental": "column", "incremental_column": "x", "schema": columns("id bigint")}
    found = run(table, **way)
    to_rest(found)
    table.run(f"INSERT INTO t (x) VALUES ('{value}')")
    with pytest.raises(DataError, match=f"'x' contains {value}, and nothing that comes later is greater"):
        found.epoch()
    with pytest.raises(DataError, match="'x' contains"):
        run(table, **way).epoch()
    table.run("ALTER TABLE t ALTER x TYPE text")
    to_rest(run(table, **way))


TYPES: list[tuple[str, str, str, Any]] = [
    # column, value, Spark's type, as read
    ("smallint", "-5", "smallint", -5),
    ("boolean", "true", "boolean", True),
    ("real", "1.5", "float", 1.5),
    ("double precision", "'NaN'", "double", "nan"),
    ("numeric(10,3)", "12.345", "decimal(10,3)", Decimal("12.345")),
    ("numeric", "12.5", "decimal(38,18)", Decimal("12.5").quantize(Decimal(10) ** -18)),
    ("varchar(9)", "'ä€'", "string", "ä€"),
    ("char(4)", "'ab'", "string", "ab"),
    ("bytea", "'\\x00ff'", "binary", b"\0\xff"),
    ("date", "'0001-01-01'", "date", datetime.date(1, 1, 1)),
    ("timestamp", "'9999-12-31 23:59:59.999999'", "timestamp_ntz", datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    ("timestamptz", "'2024-07-01 12:00+02'", "timestamp", datetime.datetime(2024, 7, 1, 10, tzinfo=UTC)),
    ("integer[]", "'{1,NULL,3}'", "array<int>", [1, None, 3]),
    ("text[]", "'{a,NULL}'", "array<string>", ["a", None]),
    ("uuid", "'0189f7e5-9a3c-7000-8000-00000000000a'", "string", "0189f7e5-9a3c-7000-8000-00000000000a"),
    ("jsonb", "'{\"a\": 1}'", "string", '{"a": 1}'),
    ("interval", "'1 day 2 hours'", "string", None),
    ("inet", "'10.0.0.1/8'", "string", "10.0.0.1/8"),
    ("time", "'10:30'", "string", "10:30:00"),
    ("mood", "'ok'", "string", "ok"),
    ("small", "3", "int", 3),
]


def test_each_type_is_read_as_the_page_says(database: Database) -> None:
    shown = ", ".join(f"c{n} {one[0]}" for n, one in enumerate(TYPES))
    database.run(
        "CREATE TYPE mood AS ENUM ('ok')", "CREATE DOMAIN small AS int", f"CREATE TABLE t (id int PRIMARY KEY, {shown})"
    )
    database.run(f"INSERT INTO t VALUES (1, {', '.join(one[1] for one in TYPES)}), (2{', NULL' * len(TYPES)})")
    found = run(database)
    to_rest(found)
    value, nulls = sorted(rows(found), key=lambda row: row["id"])
    declared = Postgres(options(database)).schema()
    for n, (kind, _, spark, expected) in enumerate(TYPES):
        assert declared[f"c{n}"].dataType.simpleString() == spark, kind
        if expected is not None:
            assert value[f"c{n}"] == expected or str(value[f"c{n}"]) == expected, kind
        assert nulls[f"c{n}"] is None
    texts = run(database, schema=columns(", ".join(f"c{n} string" for n in range(len(TYPES)))))
    to_rest(texts)
    assert all(isinstance(one, str) for one in texts.trace.all_rows().to_pylist()[0].values())


def test_declared_types_may_be_wider(table: Database) -> None:
    table.run("ALTER TABLE t ADD n smallint DEFAULT 3, ADD d numeric(6,2) DEFAULT 1.25")
    found = run(table, schema=columns("n bigint, d decimal(12,4), id decimal(20,0)"))
    to_rest(found)
    first = rows(found)[0]
    assert (first["n"], first["d"]) == (3, Decimal("1.2500"))


@pytest.fixture
def tens(database: Database) -> Database:
    database.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, at bigint GENERATED ALWAYS AS IDENTITY, word text)",
        "INSERT INTO t (id, word) SELECT 10 * n, 'w' || n FROM generate_series(1, 20) n",
    )
    return database


@pytest.mark.parametrize("way", ["bounded", "xmin"])
def test_transactions_open_at_the_plan_do_not_hinder_a_replay(tens: Database, way: str) -> None:
    """With keys among those that were planned, younger and older than what was committed then, and in savepoints."""
    with tens.connect() as old, tens.connect() as young:
        old.execute("BEGIN")
        old.execute("INSERT INTO t (id, word) VALUES (11, 'old'), (41, 'old')")
        old.execute("SAVEPOINT s")
        old.execute("INSERT INTO t (id, word) VALUES (12, 'old')")
        tens.run("INSERT INTO t (id, word) VALUES (13, 'committed')")
        young.execute("BEGIN")
        young.execute("INSERT INTO t (id, word) VALUES (14, 'young')")
        young.execute("SAVEPOINT s")
        young.execute("INSERT INTO t (id, word) VALUES (15, 'young')")
        tens.run("BEGIN; SAVEPOINT a; INSERT INTO t (id, word) VALUES (16, 'committed'); RELEASE a; COMMIT")
        found = run(tens, **WAYS[way])
        while not found.trace.all_rows().num_rows:
            assert found.epoch()
        old.execute("COMMIT")
        young.execute("COMMIT")
    found.replay()
    read = set(ids(found))
    assert {10, 200} <= read and not {11, 12, 14, 15, 41} & read


def test_many_transactions_after_an_old_one_keep_positions_small(tens: Database) -> None:
    """A transaction that has been open for long: those that have ended since are not all written down."""
    with tens.connect() as old:
        old.execute("BEGIN")
        old.execute("INSERT INTO t (id, word) VALUES (11, 'old')")
        with tens.connect() as writer:
            for number in range(300):
                writer.execute("INSERT INTO t (id, word) VALUES (%s, 'more')", (1000 + number,))
        found = run(tens)
        assert found.epoch()
        assert len(found.offset.to_json()) < 8000
        found.replay()
    to_rest(found)
    assert len(ids(found)) == 320


@pytest.mark.parametrize("what", ["query", "table"])
def test_a_null_in_the_key_of_a_query_or_view_is_refused(tens: Database, what: str) -> None:
    """No range holds it: the row would be left out without a word. Of a table's key the server sees to it."""
    select = "SELECT nullif(id, 70) AS id, word FROM t"
    tens.run(f"CREATE VIEW v AS {select}")
    given: dict[str, Any] = {"query": select} if what == "query" else {"table": "v"}
    with pytest.raises(DataError, match="'id' is null"):
        to_rest(run(tens, key="id", **given))
