"""`delta_2pc` with `mode=upsert`: what the table holds after any history of epochs, and what is refused by name."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.delta.merge import Merge
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.sinks.contract import CommitOutcome
from spark_ext.sinks.delta_2pc import DeltaTwoPhaseCommit
from tests.sinks.delta_2pc.delta_kit import Driver, data_files, ddl, live_files, table

ROWS = ddl("id long, shop string, at long, gone boolean, v long")
UPSERT = {"mode": "upsert", "key": "id,shop"}
NEWEST = {**UPSERT, "newest_by": "at", "deleted_if": "gone"}

Row = dict[str, Any]
LONG = "x" * 254  # A partition whose folder delta-rs cannot name


def row(id_: int, at: int = 0, v: int = 0, gone: bool = False, shop: str = "a") -> Row:
    return {"id": id_, "shop": shop, "at": at, "gone": gone, "v": v}


def stored(path: Path) -> list[Row]:
    found = table(path).to_pylist() if DeltaTable.is_deltatable(str(path)) else []
    return sorted(found, key=lambda one: (one["id"], one["shop"]))


def upserts(path: Path, **options: str) -> Driver:
    return Driver(path, ROWS, options={**UPSERT, **options})


@dataclass
class Model:
    """What the table is to hold, key by key: a loop over dicts, which has nothing in common with the SQL."""

    newest_by: bool
    keep: bool
    rows: dict[tuple[int, str], Row] = field(default_factory=dict)

    def epoch(self, rows: list[Row]) -> None:
        best: dict[tuple[int, str], Row] = {}
        for one in rows:
            key = one["id"], one["shop"]
            if key not in best or self._rank(one) > self._rank(best[key]):
                best[key] = one
        for key, one in best.items():
            there = self.rows.get(key)
            if there is not None and self.newest_by and one["at"] < there["at"]:
                continue
            if one["gone"] and not self.keep:
                self.rows.pop(key, None)
            else:
                self.rows[key] = one

    def _rank(self, one: Row) -> tuple[Any, ...]:
        return one["at"] if self.newest_by else 0, one["gone"], repr(list(one.items()))

    def table(self) -> list[Row]:
        left = {name for name in ("gone",) if not self.keep}
        return [{name: one[name] for name in one if name not in left} for _, one in sorted(self.rows.items())]


KEYS = st.tuples(st.integers(0, 4), st.sampled_from("ab"))
ONE = st.builds(
    lambda key, at, v, gone: row(key[0], at, v, gone, key[1]), KEYS, st.integers(0, 5), st.integers(0, 9), st.booleans()
)
EPOCHS = st.lists(
    st.tuples(st.lists(ONE, min_size=1, max_size=8), st.integers(1, 3), st.booleans()), min_size=1, max_size=5
)


@pytest.mark.slow(2, "histories of a Delta table")
@settings(max_examples=12, deadline=None)
@given(EPOCHS, st.booleans(), st.booleans(), st.sampled_from(["", "shop", LONG]))
def test_the_table_is_what_the_model_says_whatever_the_epochs(
    epochs: list[tuple[list[Row], int, bool]], newest_by: bool, keep: bool, partitioned: str
) -> None:
    folder = Path(mkdtemp())
    options = {"deleted_if": "gone", "tombstones": "keep" if keep else "drop"}
    options |= {"newest_by": "at"} if newest_by else {}
    options |= {"partition_by": "shop"} if partitioned else {}
    driver = upserts(folder / "t", **options)
    model = Model(newest_by, keep)
    try:
        for number, (rows, tasks, replayed) in enumerate(epochs):
            if partitioned == LONG:
                rows = [{**one, "shop": LONG + one["shop"]} for one in rows]
            if not newest_by:
                rows = list({(one["id"], one["shop"]): one for one in rows}.values())
            parts = [driver.write(number, rows[task::tasks], task) for task in range(tasks)]
            assert driver.commit(number, *parts) is CommitOutcome.COMMITTED
            model.epoch(rows)
            if replayed:
                again = [driver.write(number, rows[::-1], attempt=7)]
                assert driver.commit(number, *again) is CommitOutcome.ALREADY_COMMITTED
            assert stored(folder / "t") == model.table()
    finally:
        shutil.rmtree(folder)


def test_unequal_rows_of_a_key_without_newest_by_are_refused(tmp_path: Path) -> None:
    driver = upserts(tmp_path / "t")
    with pytest.raises(DataError, match=r"2 rows of the key \(id 1, shop 'a'\), and nothing says which") as refused:
        driver.commit(0, driver.write(0, [row(1, v=1)], 0), driver.write(0, [row(1, v=2), row(2)], 1))
    assert "newest_by" in refused.value.do and "epoch 0" in refused.value.operator
    assert stored(tmp_path / "t") == []
    driver.commit(0, driver.write(0, [row(1, v=1)], 0), driver.write(0, [row(1, v=1), row(2)], 1))
    assert stored(tmp_path / "t") == [row(1, v=1), row(2)]


def test_several_columns_of_time_are_compared_in_their_order(tmp_path: Path) -> None:
    driver = upserts(tmp_path / "t", newest_by="at,v")
    driver.run(0, [row(1, 5, 5), row(1, 5, 4), row(2, 5, 5), row(3, 5, 5)])
    driver.run(1, [row(1, 4, 9), row(2, 5, 6), row(3, 5, 4)])
    driver.run(2, [row(3, 6, 0)])
    assert stored(tmp_path / "t") == [row(1, 5, 5), row(2, 5, 6), row(3, 6, 0)]


def test_a_row_of_the_table_without_a_time_is_older_than_any(tmp_path: Path) -> None:
    driver = upserts(tmp_path / "t", newest_by="at")
    driver.run(0, [row(1, 5)])
    others = {**row(2), "at": None}
    write_deltalake(tmp_path / "t", pa.Table.from_pylist([others], schema=table(tmp_path / "t").schema), mode="append")
    driver.run(1, [row(2, -9, v=1)])
    assert stored(tmp_path / "t") == [row(1, 5), row(2, -9, v=1)]


def test_an_epoch_that_changes_nothing_is_committed_too(tmp_path: Path) -> None:
    """delta-rs makes no commit then; the epoch's number has to be in the table all the same."""
    driver = Driver(tmp_path / "t", ROWS, options={**NEWEST, "tombstones": "drop"})
    driver.run(0, [row(1, 5)])
    assert driver.run(1, [row(1, 4, v=1)]) is CommitOutcome.COMMITTED
    assert driver.run(2, [row(9, 4, gone=True)]) is CommitOutcome.COMMITTED
    assert DeltaTable(tmp_path / "t").transaction_version("spark_ext:out:0:q") == 2
    assert driver.run(2, [row(1, 9, v=1)]) is CommitOutcome.ALREADY_COMMITTED
    assert [one["v"] for one in stored(tmp_path / "t")] == [0]


def test_columns_that_the_query_does_not_have_are_kept(path: Path) -> None:
    upserts(path).run(0, [row(1, v=1), row(2, v=1)])
    part = Driver(path, ddl("id long, shop string, at long"), query_id="other", uid="other", options=UPSERT)
    part.run(0, [{"id": 1, "shop": "a", "at": 7}, {"id": 3, "shop": "a", "at": 8}])
    assert stored(path) == [row(1, 7, v=1), row(2, v=1), {"id": 3, "shop": "a", "at": 8, "gone": None, "v": None}]


def test_a_new_column_is_added_on_request(tmp_path: Path) -> None:
    path, wider = tmp_path / "t", ddl("id long, shop string, at long, gone boolean, v long, more string")
    upserts(path).run(0, [row(1), row(2)])
    Driver(path, wider, options={**UPSERT, "schema_evolution": "add_columns"}).run(1, [{**row(1), "more": "x"}])
    assert [one["more"] for one in stored(path)] == ["x", None]


def test_files_without_the_keys_are_not_read(tmp_path: Path) -> None:
    """By the bounds of the keys, and by partition: the other files are broken, and nobody notices."""
    driver = upserts(tmp_path / "t", partition_by="shop")
    driver.run(0, [row(1, shop="a")])
    driver.run(1, [row(1, shop="b")])
    driver.run(2, [row(9, shop="a")])
    for uri in DeltaTable(tmp_path / "t").file_uris():
        if "shop=b" in uri or pq.read_table(uri)["id"].to_pylist() == [1]:
            Path(uri).write_bytes(b"broken")
    driver.run(3, [row(9, shop="a", v=1)])
    assert DeltaTable(tmp_path / "t").history(1)[0]["operationMetrics"]["num_target_rows_updated"] == 1


def test_keys_that_are_equal_in_what_statistics_hold_of_them(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", ddl("k string, v long"), options={"mode": "upsert", "key": "k"})
    keys = ["x" * 100 + end for end in ("", "a", "\U0010ffff", "ä")]
    driver.run(0, [{"k": key, "v": 0} for key in keys])
    driver.run(1, [{"k": key, "v": 1} for key in keys])
    found = table(tmp_path / "t").to_pylist()
    assert sorted(one["k"] for one in found) == sorted(keys) and {one["v"] for one in found} == {1}


def test_what_tasks_staged_is_gone_after_the_commit(tmp_path: Path) -> None:
    driver = upserts(tmp_path / "t")
    staged = driver.write(0, [row(1)])
    assert staged is not None and {file.path for file in staged} <= data_files(tmp_path / "t")
    driver.commit(0, staged)
    assert live_files(tmp_path / "t") == data_files(tmp_path / "t")
    driver.run(0, [row(1)])
    assert len(data_files(tmp_path / "t")) == 1


@pytest.mark.parametrize("shop", ["a", LONG], ids=["delta-rs", "apart"])
def test_an_epoch_meets_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shop: str) -> None:
    driver = upserts(tmp_path / "t", partition_by="shop")
    driver.run(0, [row(1, shop=shop)])
    other = replace(driver, uid="other")
    other_files = other.write(0, [row(2, v=1, shop=shop), row(3, shop=shop)])
    mine = driver.write(1, [row(2, v=2, shop=shop)])
    whole = Merge.write
    met: list[bool] = []

    def after_another(self: Merge, *given: Any) -> bool:
        if not met:
            met.append(True)
            other.commit(0, other_files)
        return whole(self, *given)

    monkeypatch.setattr(Merge, "write", after_another)
    driver.commit(1, mine)
    assert stored(tmp_path / "t") == [row(1, shop=shop), row(2, v=2, shop=shop), row(3, shop=shop)]
    replace(driver, incarnation=2).claim()
    of_attempts = {name for name in data_files(tmp_path / "t") if "part-out-i1-e1" in name}
    assert of_attempts <= live_files(tmp_path / "t"), "the next start removes what an attempt in vain has written"


def test_change_data_is_written_for_those_who_read_it(tmp_path: Path) -> None:
    options = {**NEWEST, "tombstones": "drop", "table_properties": '{"delta.enableChangeDataFeed": "true"}'}
    driver = Driver(tmp_path / "t", ROWS, options=options)
    driver.run(0, [row(1, 1), row(2, 1)])
    driver.run(1, [row(1, 2, v=1), row(2, 2, gone=True), row(3, 2)])
    changes = pa.table(DeltaTable(tmp_path / "t").load_cdf(DeltaTable(tmp_path / "t").version())).to_pylist()
    expected = [(1, "update_postimage"), (1, "update_preimage"), (2, "delete"), (3, "insert")]
    assert sorted((one["id"], one["_change_type"]) for one in changes) == expected


def test_files_that_the_sink_writes_are_their_own_change_data(tmp_path: Path) -> None:
    options = {**UPSERT, "partition_by": "shop", "table_properties": '{"delta.enableChangeDataFeed": "true"}'}
    driver = Driver(tmp_path / "t", ROWS, options=options)
    driver.run(0, [row(1, shop=LONG), row(2, shop=LONG)])
    driver.run(1, [row(1, v=1, shop=LONG)])
    changes = pa.table(DeltaTable(tmp_path / "t").load_cdf(DeltaTable(tmp_path / "t").version())).to_pylist()
    expected = [(1, 0, LONG, "delete"), (1, 1, LONG, "insert"), (2, 0, LONG, "delete"), (2, 0, LONG, "insert")]
    assert sorted((one["id"], one["v"], one["shop"], one["_change_type"]) for one in changes) == expected


def test_a_merge_that_may_not_use_what_it_needs_is_refused(tmp_path: Path) -> None:
    driver = upserts(tmp_path / "t", merge_memory="1k", merge_disk="1k").claim()
    with pytest.raises(ConfigurationError, match=r"merge of 1,000 rows needs more than it may use") as refused:
        driver.run(0, [row(number) for number in range(1000)])
    assert "merge_memory" in refused.value.do
    upserts(tmp_path / "t").run(0, [row(number) for number in range(1000)])
    assert len(stored(tmp_path / "t")) == 1000


def test_long_texts_are_not_in_the_log(tmp_path: Path) -> None:
    """delta-rs notes the least and the greatest key in the commit, and the bounds of all columns with each file."""
    driver = Driver(tmp_path / "t", ddl("k string, v string"), options={"mode": "upsert", "key": "k"})
    for epoch, key in enumerate(["z" * 100_000, "漢" * 40_000, "z" * 100_000]):
        driver.run(epoch, [{"k": key, "v": key + str(epoch)}, {"k": "a", "v": str(epoch)}])
    found = {row["k"]: row["v"] for row in table(tmp_path / "t").to_pylist()}
    assert found == {"a": "2", "z" * 100_000: "z" * 100_000 + "2", "漢" * 40_000: "漢" * 40_000 + "1"}
    assert all(entry.stat().st_size < 10_000 for entry in (tmp_path / "t" / "_delta_log").glob("*.json"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "upsert"}, "needs the option 'key'"),
        ({"key": "id"}, "'key' requires mode=upsert"),
        ({"merge_memory": "1g"}, "'merge_memory' requires mode=upsert"),
        ({"mode": "upsert", "key": "id,id"}, "names a column twice"),
        ({"mode": "upsert", "key": "id", "newest_by": "id"}, "column 'id' cannot be two of"),
        ({"mode": "upsert", "key": "id", "tombstones": "keep"}, "requires 'deleted_if'"),
        (NEWEST, "the option 'tombstones' has to be set"),
        ({"mode": "merge"}, "option 'mode'"),
        ({"z_order_by": "id"}, "'z_order_by' requires 'optimize_interval'"),
        ({"optimize_interval": "1 h", "vacuum_after": "10 s"}, "option 'vacuum_after'"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: Mapping[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DeltaTwoPhaseCommit({"uid": "out", "path": str(tmp_path / "t"), **options})


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("id long, v long", {"key": "nr"}, "option 'key': 'nr' is not a column"),
        ("id double, v long", {"key": "id"}, "column 'id' has the type double"),
        ("id long, at double", {"key": "id", "newest_by": "at"}, "option 'newest_by': column 'at' has the type double"),
        ("id long, gone string", {"key": "id", "deleted_if": "gone"}, "type string, and not boolean"),
        ("id long, __delta_rs_source long", {"key": "id"}, "'__delta_rs_source' cannot be used by the library"),
        ("id long, g boolean, v long", {"key": "id", "deleted_if": "g", "partition_by": "g"}, "'g' is not a column"),
    ],
)
def test_columns_no_upsert_can_use(tmp_path: Path, schema: str, options: Mapping[str, str], message: str) -> None:
    driver = Driver(tmp_path / "t", ddl(schema), options={"mode": "upsert", **options})
    with pytest.raises(ConfigurationError, match=message):
        driver.sink().validate(driver.schema)
    assert not (tmp_path / "t").exists()


def test_a_name_that_delta_rs_does_not_quote(tmp_path: Path) -> None:
    schema = ddl("id long").add("b`q", "string")
    with pytest.raises(ConfigurationError, match="does not quote"):
        Driver(tmp_path / "t", schema, options={"mode": "upsert", "key": "id"}).sink().validate(schema)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"id": None}, "row 2, column 'id' is null; the option 'key'"),
        ({"at": None}, "row 2, column 'at' is null; the option 'newest_by'"),
        ({"gone": None}, "row 2, column 'gone' is null; the option 'deleted_if'"),
        ({"shop": ""}, "partition column 'shop' is the empty text, which readers take for null"),
        ({"shop": "__HIVE_DEFAULT_PARTITION__"}, "'shop' is the text '__HIVE_DEFAULT_PARTITION__', which readers take"),
    ],
)
def test_rows_without_key_time_or_flag(tmp_path: Path, bad: Row, message: str) -> None:
    driver = Driver(tmp_path / "t", ROWS, options={**NEWEST, "tombstones": "keep", "partition_by": "shop"})
    with pytest.raises(DataError, match=message) as refused:
        driver.write(4, [row(1), {**row(2), **bad}], partition=3)
    assert "epoch 4, partition 3" in refused.value.operator
    assert data_files(tmp_path / "t") == set()


def test_mode_key_and_tombstones_are_what_the_sink_is() -> None:
    def identity(**options: str) -> dict[str, str]:
        return DeltaTwoPhaseCommit({"uid": "out", "path": "/t", **options}).options.identity()

    assert identity() == {"path": "/t"}
    assert identity(**UPSERT) == {"path": "/t", "mode": "upsert", "key": "id,shop"}
    assert identity(mode="upsert", key="shop, id", newest_by="at") == identity(**UPSERT)
    assert identity(**NEWEST, tombstones="keep") == {**identity(**UPSERT), "tombstones": "keep", "deleted_if": "gone"}
    assert identity(**NEWEST, tombstones="drop") == identity(**UPSERT)
