"""The how-to pages: what they show of programs is a job, and the files for schedulers and alerts do what they are for.

Their programs are run by `tests/docs/test_examples.py` and `tests/docs/test_server_examples.py`.
"""

import ast
import configparser
import json
import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer

from spark_ext.cli import app
from spark_ext.incidents import registry
from spark_ext.incidents.loading import listeners_of
from spark_ext.incidents.types import Severity
from spark_ext.listeners.contract import MetricsContext
from spark_ext.listeners.smtp import SmtpListener
from spark_ext.script import load_function
from tests.incidents.made import change
from tests.support import pages
from tools import pages as generated

EXAMPLES = pages.DOCS.parent / "examples"
NAMES = sorted(path.stem for path in pages.HOW_TO.glob("*.md"))
SHOWN = {name: generated.PROGRAM.findall(pages.read(f"how-to/{name}")) for name in NAMES}
OF_GALLERY = [name for name in NAMES if any(path.startswith("examples/gallery/") for path in SHOWN[name])]
SCHEDULERS = EXAMPLES / "schedulers"
COMMAND = "run job.py --until now --short-lived --no-progress"
WELL = (0, 3, 9)  # exit codes of which cron tells nobody


def test_the_pages_are_weighted_in_the_search() -> None:
    assert [
        name for name in NAMES if not pages.read(f"how-to/{name}").startswith("---\nsearch:\n  boost: 2\n---\n")
    ] == []


@pytest.mark.parametrize("name", OF_GALLERY)
def test_the_part_of_a_program_is_a_file_for_the_command_run(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}_job.py").write_text(pages.python_blocks(f"how-to/{name}")[0], encoding="utf-8")
    assert callable(load_function(tmp_path / f"{name}_job.py", "job"))


def test_the_kit_tries_the_custom_source_as_printed(tmp_path: Path) -> None:
    program, trial = pages.python_blocks("how-to/custom-source")
    (tmp_path / "own_source.py").write_text(program, encoding="utf-8")
    assert "20 runs agree" in pages.run(tmp_path, trial, PYTHONPATH=str(tmp_path))


def command_of_airflow() -> str:
    tree = ast.parse((SCHEDULERS / "orders_dag.py").read_text(encoding="utf-8"))
    (found,) = [
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "bash_command"
    ]
    return str(found)


def ini(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(SCHEDULERS / name)
    return found


def line_of_cron() -> str:
    *_, line = (SCHEDULERS / "orders.cron").read_text(encoding="utf-8").splitlines()
    *times, command = line.split(None, 5)
    assert times == ["7", "*", "*", "*", "*"] and "%" not in command
    return command


def test_schedulers_run_the_command_that_there_is(tmp_path: Path) -> None:
    (tmp_path / "job.py").touch()
    commands = [line_of_cron(), ini("orders.service")["Service"]["ExecStart"], command_of_airflow()]
    assert all(COMMAND in command for command in commands)
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    _, *arguments = shlex.split(COMMAND.replace("job.py", str(tmp_path / "job.py")))
    given = run.make_context("run", arguments).params
    assert given["until"] is not None and given["short_lived"] and not given["progress"]


def test_systemd_is_told_the_exit_codes_that_are_no_failure() -> None:
    service, timer = ini("orders.service"), ini("orders.timer")
    assert service["Service"]["SuccessExitStatus"].split() == [str(code) for code in WELL if code]
    assert service["Service"]["Type"] == "oneshot" and service["Service"]["KillSignal"] == "SIGINT"
    assert timer["Timer"]["OnCalendar"] == "hourly" and timer["Install"]["WantedBy"] == "timers.target"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 8, 9])
def test_cron_sends_a_mail_only_when_something_is_wrong(code: int, tmp_path: Path) -> None:
    program = tmp_path / ".venv" / "bin" / "spark-ext"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho what happened\necho the error >&2\nexit {code}\n")
    program.chmod(0o755)
    command = line_of_cron().replace("/srv/orders", str(tmp_path))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ("" if code in WELL else "what happened\nthe error\n")


@pytest.fixture
def slack() -> Iterator[tuple[str, list[Any]]]:
    """An HTTP server in Slack's place: its URL, and what was posted."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/services/T0/B0/x", got
    server.shutdown()
    server.server_close()
    thread.join()


def test_slack_gets_the_text_that_the_page_shows(slack: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, got = slack
    monkeypatch.setenv("SLACK_WEBHOOK_URL", url)
    monkeypatch.setenv("SMTP_PASSWORD", "not-for-tables")
    to_slack, to_mail = listeners_of(registry.load(str(EXAMPLES / "alerts" / "incidents.yaml")))
    assert isinstance(to_mail, SmtpListener)
    what, action = "ConnectionRefusedError: the server is down", "restart 1 in 100 ms"
    failed = change("8c1f02aa", type_="failure", severity=Severity.ERROR, query="load", what=what, action=action)
    to_slack.changed(failed, MetricsContext(job="shop"))
    assert [one["text"] for one in got] == [pages.printed("how-to/alerts")[0].strip()]
