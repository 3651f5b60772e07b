"""Ledger tables that are damaged or gone: named as that, and everything else is shown."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_ext.errors import StateError
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.columns import arrow_schema, columns, from_json_many, to_arrow
from spark_ext.ledger.schema import ROWS, BadRowsRow, DefinitionRow, EpochRow, IncidentRow, JobRow, LatencyRow, Row
from spark_ext.model.lifecycle import State
from spark_ext.views.status import open_ledger, read_status, status_of
from tests.ledger import rows as made
from tests.ledger.rows import epoch
from tests.test_cli import spark_ext

JSON = [(row_type, one.name) for row_type in ROWS for one in columns(row_type) if one.json]
TORN = '{"uid": "s", "at'
READ = {  # `status` shows something of these
    *((JobRow, "cut"), (DefinitionRow, "definition"), (EpochRow, "offsets"), (EpochRow, "parts_ms")),
    *((LatencyRow, "way"), (LatencyRow, "hops"), (IncidentRow, "labels"), (IncidentRow, "evidence")),
    (BadRowsRow, "rules"),
}
ROWS_OF: dict[str, Row] = {row.table: row for row in made.of_each_table()}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "state"
    writer = LedgerWriter(Ledger(str(folder)), start_incarnation(Ledger(str(folder)), "j"))
    writer.append([epoch(0), made.state("RUNNING"), made.state("RUNNING", "q")])
    writer.end("STOPPED")
    return folder


@pytest.fixture
def state(job: Path, tmp_path: Path) -> Path:
    return shutil.copytree(job, tmp_path / "state")


def tear(state: Path, row_type: type[Row], column: str) -> None:
    table = to_arrow(row_type, [ROWS_OF.get(row_type.table) or Ledger(str(state)).table(JobRow).rows()[0]])
    at = table.column_names.index(column)
    table = table.set_column(at, arrow_schema(row_type).field(at), pa.array([TORN]))
    write_deltalake(str(state / "ledger" / row_type.table), table, mode="append")


@pytest.mark.parametrize(("row_type", "column"), JSON, ids=lambda one: getattr(one, "table", one))
def test_a_torn_text_damages_its_table_alone(state: Path, row_type: type[Row], column: str) -> None:
    tear(state, row_type, column)
    with pytest.raises(StateError, match=f"column '{column}' of the ledger's table '{row_type.table}'"):
        Ledger(str(state)).table(row_type).rows()
    if (row_type, column) in READ:
        with pytest.raises(StateError):
            status_of(Ledger(str(state)))
    status = read_status(str(state))
    assert (status.job, status.epochs >= 1, status.query("q").state) == ("j", True, State.RUNNING)
    named = [f"ledger table '{row_type.table}': column '{column}'"] if (row_type, column) in READ else []
    assert [line[: len(named[0])] for line in status.damage] == named


@pytest.mark.parametrize("name", [row_type.table for row_type in ROWS])
def test_a_table_that_is_gone_is_missed(state: Path, name: str) -> None:
    shutil.rmtree(state / "ledger" / name)
    with pytest.raises(StateError, match=f"'{name}' was created at the first start and is missing"):
        open_ledger(str(state))
    if name != JobRow.table:
        status = read_status(str(state))
        assert status.job == "j" and [f"'{name}'" in line for line in status.damage] == [True]


def test_no_command_ends_well_without_a_table(state: Path) -> None:
    shutil.rmtree(state / "ledger" / "epochs")
    for command in ("timeline", "epochs", "finished", "checkpoints", "incidents", "check", "top", "plot", "report"):
        done = spark_ext(command, state, *(["--once"] if command == "top" else ()))
        assert (done.returncode, "'epochs' was created" in done.stdout + done.stderr) == (2, True), command
    done = spark_ext("status", state)
    assert (done.returncode, "incarnation 1" in done.stdout) == (2, True)
    assert "DAMAGED: ledger table 'epochs'" in done.stdout
    assert len(json.loads(spark_ext("status", state, "--json").stdout)["damage"]) == 1


def test_one_with_only_some_of_its_tables_is_no_job_yet(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "state"))
    for table in list(ledger.tables.values())[:3]:
        table.create()
    with pytest.raises(StateError, match="no job has been started in it"):
        open_ledger(ledger.uri)


@pytest.mark.parametrize(
    "texts", [["1,2", "[3", "4]"], ["[1", "2]"], ['{"a"', ":1}"], ["1", ""], ["[" * 100_000], ["1], [2"], [TORN, None]]
)
def test_a_torn_text_does_not_end_in_the_next_one(texts: Sequence[str | None]) -> None:
    with pytest.raises(StateError):
        from_json_many(texts, EpochRow, "offsets")


@pytest.mark.parametrize("values", [[], [None], [1, None, {"a": [1, "x"]}, "y"]])
def test_values_come_back(values: list[Any]) -> None:
    texts = [None if value is None else json.dumps(value) for value in values]
    assert from_json_many(texts, EpochRow, "offsets") == values
