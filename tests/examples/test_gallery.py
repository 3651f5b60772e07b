"""Each program of the gallery runs as it is, and does what the page says of it; all in one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.servers.kafka import Broker
from tests.servers.postgres import PostgresServer
from tests.support import pages
from tests.support.pages import Ran

FOLDER = Path(__file__).parents[2] / "examples" / "gallery"
SERVERS = ("kafka_to_postgres",)
"""Programs that need a server."""
ALONE = tuple(sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in SERVERS))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Those that need no server, in one process."""
    return pages.run_each(
        tmp_path_factory.mktemp("gallery"),
        {name: (FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in ALONE},
    )


def rows(ran: Ran, path: str) -> list[dict[str, object]]:
    """The rows of a Delta table that a program has left."""
    found: list[dict[str, object]] = DeltaTable(ran.folder / "out" / "gallery" / path).to_pyarrow_table().to_pylist()
    return found


def test_the_page_shows_each_program_and_no_other() -> None:
    page = pages.read("gallery")
    assert set(re.findall(r"\]\(\.\./examples/gallery/(\w+)\.py\)", page)) == {*ALONE, *SERVERS}


@pytest.mark.slow(60, "runs the programs of the gallery")
@pytest.mark.parametrize("name", ALONE)
def test_each_program_runs(ran: dict[str, Ran], name: str) -> None:
    assert ran[name].well().said


def test_incremental_files_reads_what_is_new(ran: dict[str, Ran]) -> None:
    found = ran["incremental_files"].well()
    assert "monday read 2 rows, tuesday 1; the job is SUSPENDED" in found.said
    assert {row["id"] for row in rows(found, "incremental_files/orders")} == {1, 2, 3}


def test_cdc_to_upsert_has_what_the_table_has(ran: dict[str, Ran]) -> None:
    found = ran["cdc_to_upsert"].well()
    assert "the first run read 3 changes, the second 3" in found.said
    assert {(row["item"], row["n"]) for row in rows(found, "cdc_to_upsert/copy")} == {("apple", 4), ("plum", 9)}


def test_windows_to_the_end_has_all_rows_and_an_empty_state(ran: dict[str, Ran]) -> None:
    assert "with 1000 readings; 0 rows are left in the state" in ran["windows_to_the_end"].well().said


def test_backfill_then_live_has_no_gap_and_no_overlap(ran: dict[str, Ran]) -> None:
    assert "5000 rows, 5000 of them different" in ran["backfill_then_live"].well().said


def test_several_outputs_agree(ran: dict[str, Ran]) -> None:
    found = ran["several_outputs"].well()
    clean = rows(found, "several_outputs/rows")
    assert len({row["id"] for row in clean}) == len(clean) > 3_000
    high = {row["id"] for row in clean if float(str(row["value"])) > 0.9}
    assert {row["id"] for row in rows(found, "several_outputs/high")} == high
    alarms = [row for row in clean if float(str(row["value"])) > 0.99]
    assert f"{len(clean)} rows, {len(alarms)} alarms, {len(high)} high values" in found.said


def test_own_source_is_read_once(ran: dict[str, Ran]) -> None:
    found = ran["own_source"].well()
    assert "a further run reads 0 rows" in found.said
    assert {row["text"] for row in rows(found, "own_source/table")} == {"buy tea", "call the bank", "fix the bicycle"}


@pytest.mark.slow(30, "starts a JVM")
def test_kafka_to_postgres_keeps_the_newest(kafka_of_process: Broker, postgres: PostgresServer, tmp_path: Path) -> None:
    kafka, database = kafka_of_process, postgres.database()
    kafka.make("order-changes", 2)
    for partition in range(2):
        kafka.send(
            "order-changes",
            [
                f'{{"id": {10 * partition + n}, "item": "tea", "price": {version}.5, "version": {version}}}'
                for version in (1, 3, 2)
                for n in range(5)
            ],
            partition=partition,
        )
    code = (FOLDER / "kafka_to_postgres.py").read_text(encoding="utf-8")
    said = pages.run(tmp_path, code, KAFKA=kafka.bootstrap, POSTGRES_DSN=database.dsn)
    assert "job 'orders' FINISHED: 30 rows" in said
    assert database.rows("SELECT count(*), min(price), max(version) FROM orders") == [(10, 3.5, 3)]
    postgres.drop(database)
    kafka.delete("order-changes")


def test_kafka_to_postgres_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA", "POSTGRES_DSN"):
        monkeypatch.delenv(name, raising=False)
    code = (FOLDER / "kafka_to_postgres.py").read_text(encoding="utf-8")
    with pytest.raises(AssertionError, match="set KAFKA and POSTGRES_DSN"):
        pages.run(tmp_path, code)
