"""The source `postgres` over tables that change while they are half read: continued exactly, or refused by name."""

import pytest

from spark_ext.errors import NEW_QUERY, ReplayError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.postgres.identity import Identity, identify
from spark_ext.sources.postgres.relation import look_up
from spark_ext.sources.postgres.source import Postgres
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import WAYS, ids, options, run, to_rest

ANEW = (
    "CREATE TABLE t (id bigserial PRIMARY KEY, word text, at timestamptz DEFAULT now())",
    "INSERT INTO t (word) SELECT 'new' FROM generate_series(1, 40)",
)
SWAP = (
    "ALTER TABLE t ADD other bigint", "UPDATE t SET other = 100 - id",
    "ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER other SET NOT NULL", "ALTER TABLE t RENAME id TO former",
    "ALTER TABLE t RENAME other TO id", "ALTER TABLE t ADD PRIMARY KEY (id)",
)  # fmt: skip
REFILL = "INSERT INTO t (id, word) SELECT n, 'new' FROM generate_series(1, 40) n"


def half_read(database: Database, **more: str) -> SourceRun:
    """About eight of twenty rows are read, and the run has ended in the middle."""
    given, schema = options(database, rows_per_channel="4", **more), columns("id bigint, word string")
    found = SourceRun(Postgres, given, schema=schema, limits=[{"max_rows_per_epoch": "4", "readers": "1"}], lag=0)
    while len(ids(found)) < 8:
        assert found.epoch()
    return found


def apart(found: SourceRun, database: Database, *statements: str) -> None:
    """Run statements between two runs, where no snapshot keeps them waiting."""
    found.source._view.lost()  # type: ignore[attr-defined]
    database.run(*statements)
    found.restart()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (("DROP TABLE t", *ANEW), "not what was read before: the table was dropped and created again"),
        (("TRUNCATE t",), "was emptied"),
        (("TRUNCATE t", REFILL), "was emptied"),
        (("ALTER TABLE t ALTER id TYPE text",), "type or collation of the key"),
        (("ALTER TABLE t ALTER at TYPE text",), "all of its rows were rewritten"),
        (SWAP, "is the name of another column now"),
    ],
    ids=["dropped", "truncated", "refilled", "key altered", "column altered", "key swapped"],
)
def test_a_half_read_table_that_is_not_the_same_is_refused(
    table: Database, way: str, statements: tuple[str, ...], said: str
) -> None:
    """By its name it is the same table; ranges that were read before would count as read in the new one."""
    table.run("ALTER TABLE t ALTER id DROP DEFAULT")
    found = half_read(table, **WAYS[way])
    before = ids(found)
    if "text" in statements[0] and "id" in statements[0]:
        found._schema = columns("id string, word string")
    apart(found, table, *statements)
    with pytest.raises(ReplayError, match=said) as refused:
        to_rest(found)
    assert ids(found) == before and NEW_QUERY in refused.value.do


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "statement",
    ["VACUUM FULL t", "ALTER TABLE t ADD more int DEFAULT 3", "ALTER TABLE t RENAME TO u; ALTER TABLE u RENAME TO t"],
)
def test_a_half_read_table_stored_anew_is_read_to_its_end(table: Database, way: str, statement: str) -> None:
    found = half_read(table, **WAYS[way])
    apart(found, table, statement)
    to_rest(found)
    assert ids(found) == list(range(1, 21))


def test_a_wider_key_leaves_the_order_as_it_is(table: Database) -> None:
    """From integer to bigint, which is seen by the type of a view's column."""
    table.run("CREATE VIEW v AS SELECT id::int AS id, word FROM t")
    found = run(table, schema=columns("id bigint"), rows_per_channel="4", table="v", key="id", **WAYS["column"])
    to_rest(found)
    wider = "DROP VIEW v; CREATE VIEW v AS SELECT id, word FROM t"
    apart(found, table, "INSERT INTO t (word) VALUES ('more')", wider)
    with pytest.raises(ReplayError, match="not what was read before"):
        to_rest(found)
    data = next(state.data for name, state in found.offset.running.items() if name == "increment")
    assert Identity.parse(data["identity"]).order == _order(table, "v") == _order(table, "t")


def test_a_token_is_read_back() -> None:
    for made in (Identity("a", "b", "c", 5), Identity("a", "b", "c", 5, "d")):
        assert Identity.parse(made.token) == made


def _order(database: Database, name: str) -> str:
    with database.connect() as connection:
        return identify(connection, look_up(connection, f'"{name}"', True, "id", "test"), True, "id", 0).order


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"table": "a"}, {"table": "b"}),
        ({"table": "", "query": "SELECT * FROM a", "key": "id"}, {"query": "SELECT * FROM b"}),
        ({"table": "", "query": "SELECT * FROM a", "key": "id"}, {"query": "SELECT * FROM a WHERE id > 2"}),
        ({"table": "v", "key": "id"}, {}),
    ],
    ids=["table", "query", "condition", "view"],
)
def test_another_table_or_query_in_the_middle_is_refused(
    table: Database, before: dict[str, str], after: dict[str, str]
) -> None:
    for name in "ab":
        table.run(f"CREATE TABLE {name} (LIKE t INCLUDING ALL)", f"INSERT INTO {name} SELECT * FROM t")
    table.run("CREATE VIEW v AS SELECT * FROM a")
    found = half_read(table, **before)
    found._options.update(after)
    apart(found, table, "CREATE OR REPLACE VIEW v AS SELECT * FROM a WHERE id > 0")
    with pytest.raises(ReplayError, match="the options, the view or the query were changed"):
        to_rest(found)


@pytest.mark.parametrize("restart", [True, False])
def test_a_column_that_begins_again_is_refused(table: Database, restart: bool) -> None:
    """TRUNCATE ... RESTART IDENTITY: its new values are below the last one that was read."""
    found = half_read(table, **WAYS["column"])
    to_rest(found)
    table.run("TRUNCATE t RESTART IDENTITY", "INSERT INTO t (word) VALUES ('lost')")
    if restart:
        found.restart()
    with pytest.raises(ReplayError, match="values up to 20 again"):
        to_rest(found)


@pytest.mark.parametrize("way", ["xmin", "column"])
def test_a_table_emptied_after_it_was_read_may_be_filled_further(table: Database, way: str) -> None:
    """As a queue is: the values continue."""
    found = half_read(table, **WAYS[way])
    to_rest(found)
    table.run("TRUNCATE t", "INSERT INTO t (word) VALUES ('more')")
    to_rest(found)
    assert ids(found) == list(range(1, 22))
