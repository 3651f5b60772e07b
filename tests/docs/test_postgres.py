"""The examples of the pages `postgres_2pc.md` and `postgres.md` run."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from tests.servers.postgres import Database
from tests.support import pages


def test_the_examples_run_as_printed(tmp_path: Path, database: Database) -> None:
    """One after the other in one process: the source reads the table that the sink has made."""
    blocks = pages.python_blocks("postgres_2pc") + pages.python_blocks("postgres")
    pages.run(tmp_path, "\n".join(blocks), POSTGRES_DSN=database.dsn)
    assert database.rows("SELECT count(*), sum(amount) FROM orders") == [(2500, 2499 * 2500 / 8)]
    assert len(DeltaTable(tmp_path / "out" / "orders").to_pyarrow_table()) == 2500
