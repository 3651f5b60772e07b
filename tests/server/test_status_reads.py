"""How much is read of the ledger of a job with very many queries and epochs, for its status."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from benchmarks.page import made
from spark_ext.delta.tail import Tail
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import EpochRow
from spark_ext.ledger.tables import LedgerTable
from spark_ext.server.answers import JobStatusAnswer
from spark_ext.server.server import ControlServer
from spark_ext.views.status import read_status
from tests.server.served import client

QUERIES, EPOCHS = 500, 100_000


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Rows that are read, by table; those of the newest entries of a log are `new`."""
    found: Counter[str] = Counter()
    table, tail = LedgerTable.read, Tail.after

    def counted(self: LedgerTable[Any], *arguments: Any, **options: Any) -> pa.Table:
        rows = table(self, *arguments, **options)
        found[self.row_type.table] += rows.num_rows
        return rows

    def counted_tail(self: Tail, version: int, most: int) -> tuple[int, pa.Table] | None:
        added = tail(self, version, most)
        found["new"] += 0 if added is None else added[1].num_rows
        return added

    monkeypatch.setattr(LedgerTable, "read", counted)
    monkeypatch.setattr(Tail, "after", counted_tail)
    return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Ledger, httpx.Client]]:
    state = made(tmp_path / "state", QUERIES, EPOCHS)
    with ControlServer(state) as server, client(server, server.token) as http:
        yield Ledger(state), http


@pytest.mark.slow(5, "a ledger of 100,000 epochs")
def test_only_what_is_new_is_read_for_the_status(read: Counter[str], served: tuple[Ledger, httpx.Client]) -> None:
    ledger, http = served

    def status() -> dict[str, Any]:
        answer = http.get("/v1/jobs/many")
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    first = status()
    assert len(first["queries"]) == QUERIES and sum(query["epochs"] for query in first["queries"]) == EPOCHS
    assert EPOCHS <= read["epochs"] <= EPOCHS + 2 * QUERIES, "once, and the newest ones with their offsets"
    read.clear()
    assert {**status(), "timeline": 0} == {**first, "timeline": 0} and read.total() == 0, "nothing has changed"

    (row,) = ledger.table(EpochRow).rows([("query", "=", "query-007"), ("epoch", "=", 1)])
    row = replace(row, epoch=EPOCHS, input_rows=11, lag_rows=70, committed_at=datetime.now(timezone.utc))
    ledger.table(EpochRow).append([row])
    read.clear()
    before, after = ({query["uid"]: query for query in one["queries"]} for one in (first, status()))
    own, old = after.pop("query-007"), before.pop("query-007")
    assert after == before and (own["last_epoch"], own["lag_rows"]) == (EPOCHS, 70)
    assert (own["epochs"], own["rows"]) == (old["epochs"] + 1, old["rows"] + 11)
    assert read == {"new": 1}, "one epoch"

    # What is kept from request to request is what is read in one go.
    once = JobStatusAnswer(**read_status(ledger.uri).to_json())
    assert JobStatusAnswer(**status()).queries == once.queries
