"""Jobs over Spark Connect: one server for the file, and clients that are processes of their own, without a JVM."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow, JobRow
from tests.servers.connect import client_environment, connect_server
from tests.support.processes import Tree
from tests.support.waiting import until

pytestmark = [pytest.mark.slow(150, "starts a server of Spark Connect"), pytest.mark.process]

WITHIN = 300.0  # s, on a busy machine


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
    with connect_server(tmp_path_factory.mktemp("server") / "log") as address:
        yield address


def command(remote: str, folder: Path, how: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.connect_client", remote, str(folder), how]


def run(remote: str, folder: Path, how: str = "end") -> dict[str, Any]:
    done = subprocess.run(
        command(remote, folder, how), capture_output=True, text=True, check=False, timeout=WITHIN,
        env=client_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def windows(folder: Path) -> list[tuple[Any, ...]]:
    table = DeltaTable(folder / "counts").to_pandas()
    return sorted(zip(table["start"].astype("int64"), table["key"], table["n"], table["sum"], strict=True))


def expected(folder: Path) -> list[tuple[Any, ...]]:
    rows = DeltaTable(folder / "copies").to_pandas()
    assert len(rows) == 4000
    rows["start"] = rows["ts"].dt.floor("1min")
    found = rows.groupby(["start", "key"]).agg(n=("seq", "size"), sum=("seq", "sum")).reset_index()
    return sorted(zip(found["start"].astype("int64"), found["key"], found["n"], found["sum"], strict=True))


def test_windows_to_the_end_and_a_second_run_that_reads_nothing(remote: str, tmp_path: Path) -> None:
    first = run(remote, tmp_path)
    assert first["state"] == "FINISHED"
    assert first["rows"] == {"windows": 4000, "copy": 4000}
    assert windows(tmp_path) == expected(tmp_path)
    second = run(remote, tmp_path)
    assert second == {"state": "FINISHED", "rows": {"windows": 0, "copy": 0}, "epochs": 0}
    assert windows(tmp_path) == expected(tmp_path)


def test_a_query_that_fails_is_started_again(remote: str, tmp_path: Path) -> None:
    found = run(remote, tmp_path, "flaky")
    assert found["state"] == "FINISHED" and (tmp_path / "failed").exists()
    assert windows(tmp_path) == expected(tmp_path)
    table = Ledger(str(tmp_path / "state")).table(IncidentRow)
    assert [row.labels["type"] for row in table.rows() if row.type == "failure"] == ["NETWORK"]


def test_until_now_ends_with_what_is_there_and_goes_on(remote: str, tmp_path: Path) -> None:
    assert [run(remote, tmp_path, "now")["state"] for _ in range(2)] == ["FINISHED", "FINISHED"]
    assert windows(tmp_path) == expected(tmp_path)


def test_a_new_client_takes_over_from_a_killed_one(remote: str, tmp_path: Path) -> None:
    def copies() -> int:
        return len(DeltaTable(tmp_path / "copies").to_pandas()) if (tmp_path / "copies/_delta_log").exists() else 0

    with Tree(command(remote, tmp_path, "live"), tmp_path / "first.log", env=client_environment()) as first:
        until(lambda: copies() > 0, "rows of the first client", WITHIN)
        first.kill()
        before = copies()
        until(lambda: copies() > before, "rows of a query whose client is dead", WITHIN)
    with Tree(command(remote, tmp_path, "live"), tmp_path / "second.log", env=client_environment()) as second:
        until(lambda: len(Ledger(str(tmp_path / "state")).table(JobRow).rows()) > 1, "the second start", WITHIN)
        before = copies()
        until(lambda: copies() > before + 100, "rows of the second client", WITHIN)
        assert second.poll() is None, (tmp_path / "second.log").read_text()[-2000:]
    found = DeltaTable(tmp_path / "copies").to_pandas()
    assert not found.duplicated(["channel", "seq"]).any()
    for _, one in found.groupby("channel"):
        assert sorted(one["seq"]) == list(range(len(one)))
