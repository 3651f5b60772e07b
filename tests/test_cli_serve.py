"""`spark-ext serve` and `spark-ext token`: a server as a process of its own, and the tokens that it accepts."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spark_ext as sx
from spark_ext.errors import ConfigurationError
from spark_ext.steering.control import Control
from tests.control.states import State
from tests.test_cli import printed as shown
from tests.test_cli import refused, spark_ext


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


@contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "spark_ext", "serve", *map(str, arguments), "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_server_of_two_jobs_is_stopped_in_order(state: State, tmp_path: Path, end: signal.Signals) -> None:
    with serving(state.path, State(tmp_path / "other", job="flights").path) as (printed, process):
        with Control(f"{printed['url']}/v1/jobs/orders", printed["token"]) as orders:
            sent = orders.pause()
        with Control(f"{printed['url']}/v1/jobs/flights", printed["token"]) as flights:
            assert flights.events() == []
        process.send_signal(end)
        assert process.wait(60) == 0
        assert process.stdout is not None and process.stdout.read() == ""
    assert Control(state.path).event(sent.id).state.requested_by == "local"


def test_a_server_with_a_token_file(state: State, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    reader = spark_ext("token", "create", file, "--name", "dashboard", "--scope", "read").stdout.strip()
    made = shown("token", "create", file, "--name", "operator")
    assert made["scopes"] == ["control", "read"]
    with serving(state.path, "--tokens", file) as (printed, _):
        assert printed["token"] is None
        with Control(printed["url"], made["token"]) as control:
            control.pause()
            assert control.events()[0].requested_by == "operator"
        with Control(printed["url"], reader) as control:
            assert len(control.events()) == 1
            with pytest.raises(ConfigurationError, match="does not have the scope control"):
                control.resume()
        assert spark_ext("token", "revoke", file, "--name", "dashboard").returncode == 0
        with Control(printed["url"], reader) as control, pytest.raises(ConfigurationError, match="invalid bearer"):
            control.events()


def test_tokens_are_printed_once_and_kept_as_hashes(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    done = spark_ext("token", "create", file, "--name", "a")
    token = done.stdout.strip()
    assert token.startswith("sxt_") and len(done.stdout.split()) == 1
    assert token not in file.read_text() and file.stat().st_mode & 0o777 == 0o600
    spark_ext("token", "create", file, "--name", "b", "--scope", "read")
    assert shown("token", "list", file) == [
        {"name": "a", "scopes": ["control", "read"]},
        {"name": "b", "scopes": ["read"]},
    ]
    assert "control, read" in spark_ext("token", "list", file).stdout
    for arguments, said in (
        (["create", file, "--name", "a"], "there is a token named 'a' already"),
        (["create", file, "--name", "c", "--scope", "write"], "unknown scopes: write"),
        (["revoke", file, "--name", "c"], "contains no token named 'c'"),
        (["list", tmp_path / "none"], "cannot be read"),
    ):
        assert said in refused("token", *arguments), arguments  # type: ignore[arg-type]


def test_what_a_server_refuses(state: State, tmp_path: Path) -> None:
    for arguments, said in (
        (["--host", "0.0.0.0"], "tokens would be sent in the clear"),
        (["--tls-cert", "cert.pem"], "give both --tls-cert and --tls-key"),
        (["--tls-cert", tmp_path / "none", "--tls-key", tmp_path / "none"], "the certificate cannot be used"),
        (["--tokens", tmp_path / "none"], "the token file cannot be read"),
        (["--storage", "nonsense"], "is not KEY=VALUE"),
    ):
        assert said in refused("serve", state.path, *arguments), arguments


def test_without_the_extra_it_says_what_to_install(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "pip install 'spark-ext[server]'" in refused("serve", state.path)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ConfigurationError, match="'httpx' is not installed"):
        sx.Control("http://127.0.0.1:1", "token")
