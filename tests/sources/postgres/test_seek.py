"""`seek` in the source `postgres`: keys of a range, and values or transactions of the increment."""

import pytest

from spark_ext.errors import ConfigurationError
from spark_ext.model.offsets import Json
from spark_ext.sources.postgres.source import INCREMENT
from spark_ext.testing.source_kit import SourceRun
from tests.servers.postgres import Database
from tests.sources.postgres.postgres_runs import ids, run, to_rest


def refused(found: SourceRun, channel: str, position: Json, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        found.seek(channel, position)
    assert "continues where it is" in caught.value.kept


def test_a_range_continues_at_a_key_in_the_same_snapshot(table: Database) -> None:
    found = run(table, limit=4, rows_per_channel="100")
    assert found.epoch()
    (name,) = found.offset.running
    table.run("INSERT INTO t (word) VALUES ('later')")
    nonsense: list[Json] = ["x", "5.5", None, True, [], {"key": "5"}, 21, "21", "9" * 30, "1; DROP TABLE t"]
    for wrong in [*nonsense, "\x00", "'", "\\", "\ud800"]:
        refused(found, name, wrong, "a value of 'id' up to 20")
    assert found.seek(name, 15) == {"upto": "15"}
    found.epoch()
    found.replay()
    assert found.seek(name, {"upto": "3", "rows": 4}) == {"upto": "3"}
    found.epoch()
    found.seek(name, "20")
    to_rest(found)
    assert found.trace.rows(name)["id"].to_pylist() == [1, 2, 3, 4, 15, 16, 17, 18, 3, 4, 5, 6, 20]
    assert found.offset.ended


def test_a_key_of_another_range_is_refused(table: Database) -> None:
    found = run(table, limit=2, rows_per_channel="5")
    assert found.epoch()
    name = sorted(found.offset.running)[-1]
    low, high, _ = found.offset.running[name].data["range"]
    refused(found, name, int(high) + 1, "a value of 'id' (from|up to)")
    if low is not None:
        refused(found, name, int(low) - 1, f"a value of 'id' from {low} to {high}")
    assert found.seek(name, high) == {"upto": high}


def test_keys_are_compared_as_the_column_is_ordered(database: Database) -> None:
    database.run(
        'CREATE TABLE t (id text COLLATE "C" PRIMARY KEY, word text)',
        "INSERT INTO t SELECT lpad(n::text, 3, '0'), 'w' FROM generate_series(1, 20) n",
        "ANALYZE t",
    )
    found = run(database, limit=4, rows_per_channel="100")
    assert found.epoch()
    (name,) = found.offset.running
    assert found.seek(name, "018x") == {"upto": "018x"}
    to_rest(found)
    assert found.trace.rows(name)["id"].to_pylist() == ["001", "002", "003", "004", "019", "020"]


def grown(database: Database, incremental: dict[str, str]) -> SourceRun:
    found = run(database, limit=100, **incremental)  # type: ignore[arg-type]
    to_rest(found)
    database.run("INSERT INTO t (word) SELECT 'more' FROM generate_series(1, 10)")
    to_rest(found)
    assert ids(found) == list(range(1, 31))
    return found


def test_an_increment_by_column_reads_again_from_behind_a_value(table: Database) -> None:
    found = grown(table, {"incremental": "column", "incremental_column": "id"})
    before = found.offset.running[INCREMENT].at
    for wrong in ("x", None, True, [30], {"xid": 3}, 31):
        refused(found, INCREMENT, wrong, "a value of 'id', at most the greatest one")
    to = found.seek(INCREMENT, 27)
    assert (to["value"], to["open"], to.get("next")) == ("27", True, before.get("next"))
    to_rest(found)
    found.replay()
    assert ids(found) == sorted([*range(1, 31), 28, 29, 30])
    table.run("INSERT INTO t (word) VALUES ('last')")
    assert found.seek(INCREMENT, {"value": "31"})["value"] == "31"
    to_rest(found)
    assert 31 not in ids(found)


def test_an_increment_by_transaction_rereads_from_a_transaction(table: Database) -> None:
    found = grown(table, {"incremental": "xmin"})
    before = found.offset.running[INCREMENT].at
    for wrong in (-1, "x", None, True, before["xid"] + 10**6):
        refused(found, INCREMENT, wrong, "the number of a transaction, up to the oldest one that has not ended")
    assert found.seek(INCREMENT, before["xid"] - 1)["xid"] == before["xid"] - 1
    to_rest(found)
    found.replay()
    assert ids(found).count(30) == 2


def test_the_increment_waits_for_the_rows_before_it(table: Database) -> None:
    found = run(table, limit=5, incremental="column", incremental_column="id")
    assert found.epoch()
    refused(found, INCREMENT, 20, "the rows that the table had at the start are still being read")
