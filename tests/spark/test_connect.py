"""Jobs over Spark Connect: one server for the file, and clients that are processes of their own, without a JVM."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow, JobRow
from tests.servers.connect import ConnectServer, client_environment
from tests.servers.serverless import serverless
from tests.support.processes import Tree
from tests.support.waiting import until
from tests.support.windows import expected, windows

pytestmark = [pytest.mark.slow(40, "starts clients of a server of Spark Connect"), pytest.mark.process]

WITHIN = 300.0  # s, on a busy machine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    pytest.importorskip("grpc_status", reason="pip install 'pyspark[connect]'")
    with ConnectServer(tmp_path_factory.mktemp("server") / "log") as server:
        yield server


@pytest.fixture
def remote(server: ConnectServer) -> str:
    return server.address


def command(remote: str, folder: Path, how: str, python: str = sys.executable) -> list[str]:
    return [python, "-m", "tests.support.connect_client", remote, str(folder), how]


def client(remote: str, folder: Path, how: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(remote, folder, how, python), capture_output=True, text=True, check=False, timeout=WITHIN,
        env=client_environment(),
    )  # fmt: skip


def run(remote: str, folder: Path, how: str = "end", python: str = sys.executable) -> dict[str, Any]:
    done = client(remote, folder, how, python)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def live(remote: str, folder: Path, name: str, how: str = "live") -> Tree:
    return Tree(command(remote, folder, how), folder / f"{name}.log", env=client_environment())


def copies(folder: Path) -> int:
    return len(DeltaTable(folder / "copies").to_pandas()) if (folder / "copies/_delta_log").exists() else 0


def add_file(folder: Path, number: int, rows: range) -> None:
    (folder / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"id": one, "at": f"2026-01-01T00:{one:02}:00Z"}) for one in rows]
    (folder / f"{number}.draft").write_text("".join(f"{line}\n" for line in lines))
    (folder / f"{number}.draft").rename(folder / "in" / f"{number}.json")


def linked_twice(remote: str, folder: Path, how: str, python: str = sys.executable) -> None:
    """Run the linked job over files that come between two runs, and compare."""
    for number in (0, 1):
        add_file(folder, number, range(20 * number, 20 * number + 20))
        assert run(remote, folder, how, python)["state"] == "SUSPENDED"
        found = DeltaTable(folder / "out").to_pandas()
        assert sorted(zip(found["id"], found["twice"], strict=True)) == [(n, 2 * n) for n in range(20 * number + 20)]
    minutes = DeltaTable(folder / "minutes").to_pandas()
    assert len(minutes) >= 30 and not minutes.duplicated("start").any() and set(minutes["n"]) == {1}


@pytest.mark.core
def test_windows_to_the_end_and_a_second_run_that_reads_nothing(remote: str, tmp_path: Path) -> None:
    use = f'use: "tests.support.incident_listener:States", options: {{name: connected, file: {tmp_path / "told"}}}'
    (tmp_path / "incidents.yaml").write_text(f"listeners: [{{{use}}}]")
    first = run(remote, tmp_path)
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert {"state", "source", "checkpoint", "job", "latency", "epoch"} == {one["kind"] for one in told}
    finished = {(one["kind"], one["source"] or one["query"]) for one in told if one["new"] == "FINISHED"}
    assert {("source", "rows"), ("source", "copied"), ("state", "windows"), ("state", "")} <= finished
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


def test_a_new_client_takes_over_and_the_older_is_fenced(remote: str, tmp_path: Path) -> None:
    with live(remote, tmp_path, "first") as first:
        until(lambda: copies(tmp_path) > 0, "rows of the first client", WITHIN)
        first.kill()
        before = copies(tmp_path)
        until(lambda: copies(tmp_path) > before, "rows of a query whose client is dead", WITHIN)
    with live(remote, tmp_path, "second") as second:
        until(lambda: len(Ledger(str(tmp_path / "state")).table(JobRow).rows()) > 1, "the second start", WITHIN)
        before = copies(tmp_path)
        until(lambda: copies(tmp_path) > before + 100, "rows of the second client", WITHIN)
        assert second.poll() is None, second.text()[-2000:]
        with live(remote, tmp_path, "third") as third:
            until(lambda: second.poll() is not None, "the end of the second client", WITHIN)
            assert "FENCED" in second.text()
            before = copies(tmp_path)
            until(lambda: copies(tmp_path) > before + 100, "rows of the third client", WITHIN)
            assert third.poll() is None, third.text()[-2000:]
    found = DeltaTable(tmp_path / "copies").to_pandas()
    assert not found.duplicated(["channel", "seq"]).any()
    for _, one in found.groupby("channel"):
        assert sorted(one["seq"]) == list(range(len(one)))


def test_a_query_that_left_the_job_while_its_client_is_dead_ends(server: ConnectServer, tmp_path: Path) -> None:
    with live(server.address, tmp_path, "first") as first:
        until(lambda: copies(tmp_path) > 0, "rows of the first client", WITHIN)
        first.kill()
    assert run(server.address, tmp_path, "without")["state"] == "FINISHED"
    until(lambda: "this query belongs to incarnation 1" in server.log.read_text(), "the end of the query", WITHIN)
    assert not (tmp_path / "state" / "registry").exists()


def test_links_functions_and_async_map_until_now(remote: str, tmp_path: Path) -> None:
    linked_twice(remote, tmp_path, "linked")


def test_until_now_under_the_rules_of_serverless(remote: str, tmp_path: Path) -> None:
    with serverless(remote) as address:
        linked_twice(address, tmp_path, "registered")
        made = client(address, tmp_path / "other", "now")
    assert made.returncode == 0, made.stderr[-4000:]
    assert "it keeps its own: spark.sql.streaming.stateStore.providerClass" in made.stderr
    assert windows(tmp_path / "other") == expected(tmp_path / "other")


def test_a_stream_behind_a_view_is_refused_with_the_way_out(remote: str, tmp_path: Path) -> None:
    refused = client(remote, tmp_path, "hidden")
    assert refused.returncode != 0
    assert "reads a stream by a name that only the server of Spark Connect resolves" in refused.stderr
    assert "use the DataFrame of spark.readStream" in refused.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif("SPARK_EXT_PYSPARK_CLIENT" not in os.environ, reason="names a Python with pyspark-client")
def test_a_client_without_py4j(remote: str, tmp_path: Path) -> None:
    python = os.environ["SPARK_EXT_PYSPARK_CLIENT"]
    assert subprocess.run([python, "-c", "import py4j"], capture_output=True, check=False).returncode != 0
    assert run(remote, tmp_path, python=python)["state"] == "FINISHED"
    assert windows(tmp_path) == expected(tmp_path)


def test_killed_planners_and_workers_change_no_row(server: ConnectServer, tmp_path: Path) -> None:
    with live(server.address, tmp_path, "client", "slow") as running:
        until(lambda: copies(tmp_path) > 0, "rows", WITHIN)
        for worker in server.python_workers():
            worker.kill()
        assert running.wait(WITHIN) == 0, running.text()[-4000:]
    assert json.loads(running.text().splitlines()[-1])["rows"] == {"windows": 4000, "copy": 4000}
    assert windows(tmp_path) == expected(tmp_path)


def test_a_killed_server_ends_the_client_by_name(server: ConnectServer, tmp_path: Path) -> None:
    """The last test: the server's sessions are gone with it."""
    with live(server.address, tmp_path, "client") as running:
        until(lambda: copies(tmp_path) > 0, "rows", WITHIN)
        server.kill()
        assert running.wait(WITHIN) not in (0, None), running.text()[-2000:]
    assert "the server of Spark Connect does not answer" in running.text()
    assert "start the server, if it does not run, and then this program: the job continues" in running.text()
    server.start()
    with live(server.address, tmp_path, "second"):
        before = copies(tmp_path)
        until(lambda: copies(tmp_path) > before + 100, "rows of the next start", WITHIN)
    found = DeltaTable(tmp_path / "copies").to_pandas()
    assert not found.duplicated(["channel", "seq"]).any()
