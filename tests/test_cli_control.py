"""`spark-ext control`: each command sends what it says, over the ledger and over a server, and ends with its code."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ext.commands import output
from spark_ext.control.event_state import EventState
from spark_ext.control.history import Filter, History
from spark_ext.ledger import Ledger
from spark_ext.model.configuration import Configuration
from spark_ext.model.control import Event
from spark_ext.model.control_kinds import kinds
from spark_ext.model.offsets import Running, SourceOffset
from spark_ext.server.server import ControlServer
from tests.control.states import State
from tests.support.waiting import until
from tests.test_cli import refused, spark_ext


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path / "state")


@pytest.fixture(params=["ledger", "server"])
def where(request: pytest.FixtureRequest, state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The state directory, and the URL of a server that serves it."""
    if request.param == "ledger":
        yield state.path
        return
    with ControlServer(state.path) as server:
        assert server.token is not None
        monkeypatch.setenv("SPARK_EXT_TOKEN", server.token)
        yield server.url


def control(where: str, *arguments: str, code: int = 0) -> Any:
    done = spark_ext("control", where, *arguments, "--json")
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout) if done.stdout else None


def event_of(state: State, sequence: int) -> Event:
    row = next(one for one in newest(state) if one.sequence == sequence)
    return Event(row.sequence, row.event_id, row.kind, value=row.value, at_ms=int(row.accepted_at.timestamp() * 1e3))


def newest(state: State) -> tuple[EventState, ...]:
    return History(Ledger(state.path)).page(Filter()).events


SENT: list[tuple[list[str], tuple[str, str, Any]]] = [
    (["rate-limit", "source:q-in", "5000"], ("rate_limit", "source:q-in", {"rows_per_second": 5000})),
    (["rate-limit", "source:q-in", "0.5"], ("rate_limit", "source:q-in", {"rows_per_second": 0.5})),
    (
        ["rate-limit", "source:q-in/a-b", "--bytes", "100", "--per-epoch", "7", "--older-than", "1h"],
        ("rate_limit", "source:q-in/a-b", {"bytes_per_second": 100.0, "rows_per_epoch": 7, "older_than": 3_600_000}),
    ),
    (["rate-limit", "source:q-in", "none"], ("rate_limit", "source:q-in", None)),
    (["pause"], ("pause", "job", None)),
    (["pause", "query:q"], ("pause", "query:q", None)),
    (["resume", "source:q-in"], ("resume", "source:q-in", None)),
    (["sample", "source:q-in", "0.1"], ("sample", "source:q-in", {"fraction": 0.1})),
    (["sample", "source:q-in", "none"], ("sample", "source:q-in", None)),
    (["interval", "10s"], ("trigger_interval", "job", {"interval": 10_000})),
    (["interval", "none", "query:q"], ("trigger_interval", "query:q", None)),
    (["set", "a-key", '{"x": [1, null]}'], ("set_config", "job", {"key": "a-key", "value": {"x": [1, None]}})),
    (["set", "k", "-5", "--target", "query:q"], ("set_config", "query:q", {"key": "k", "value": -5})),
    (["set", "k", "--text", "-yes"], ("set_config", "job", {"key": "k", "value": "-yes"})),
    (["unset", "k"], ("set_config", "job", {"key": "k", "unset": True})),
    (["schema", "k", '{"type": "number"}'], ("config_schema", "job", {"key": "k", "schema": {"type": "number"}})),
    (["log-level", "debug", "--logger", "my.module"], ("log_level", "job", {"level": "DEBUG", "logger": "my.module"})),
    (["checkpoint"], ("checkpoint", "job", None)),
    (["savepoint", "/kept/a", "--aligned"], ("savepoint", "job", {"path": "/kept/a", "aligned": True})),
    (["drain"], ("drain", "job", None)),
    (["stop"], ("stop", "job", None)),
    (["restart", "query:r"], ("restart", "query:r", None)),
    (["seek", "source:q-in/a", "-5", "--yes"], ("seek", "source:q-in/a", {"position": -5, "yes": True})),
    (["dump"], ("dump", "job", {})),
    (["dump", "--scope", "driver"], ("dump", "job", {"scope": "driver"})),
    (["dump", "--heap"], ("dump", "job", {"heap": True})),
    (["broadcast", "flush", '{"region": "eu"}'], ("broadcast", "job", {"type": "flush", "value": {"region": "eu"}})),
    (["send", "pause", "query:q"], ("pause", "query:q", None)),
    (
        ["send", "seek", "source:q-in/a", '{"position": 1}', "--yes"],
        ("seek", "source:q-in/a", {"position": 1, "yes": True}),
    ),
    (["trigger_interval", "query:q", '{"interval": "3 s"}'], ("trigger_interval", "query:q", {"interval": 3000})),
    (["checkpoint-config", "job", "null"], ("checkpoint_config", "job", None)),
]


def test_each_command_sends_what_it_says(where: str, state: State) -> None:
    sent = SENT if where == state.path else SENT[::6]
    for arguments, (kind, target, value) in sent:
        printed = control(where, *arguments)
        assert (printed["kind"], printed["target"], printed["value"]) == (kind, target, value), arguments
        assert (printed["status"], printed["final"]) == ("accepted", False)
    stored = newest(state)
    assert [(one.kind, one.target, one.value) for one in reversed(stored)] == [one for _, one in sent]
    if sent is SENT:
        assert {one.kind for one in stored} == {name for name, kind in kinds().items() if kind.public} - {"reload"}
    assert "the job has no lookup 'x'" in refused("control", where, "send", "reload", "job", '{"lookup": "x"}')


def test_a_schema_may_be_in_a_file(where: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "string"}')
    assert control(where, "schema", "k", str(tmp_path / "schema.json"))["value"]["schema"] == {"type": "string"}
    assert "does not conform to its schema" in refused("control", where, "set", "k", "5")


def test_how_an_event_is_sent(where: str) -> None:
    first = control(where, "set", "k", "1", "--delivery", "aligned", "--key", "monday-1", "--expires", "10m")
    assert (first["delivery"], first["idempotency_key"]) == ("aligned", "monday-1")
    assert first["expires_at"] is not None
    assert control(where, "pause", "--key", "p") == control(where, "pause", "--key", "p"), "accepted once"
    assert "idempotency key" in refused("control", where, "resume", "--key", "p")


def test_a_key_that_is_almost_one_of_a_query_is_accepted_with_a_note(where: str, state: State) -> None:
    state.define("q", (("threshold", "double"),))
    said = spark_ext("control", where, "set", "treshold", "0.9")
    assert said.returncode == 0 and "accepted" in said.stdout, said.stderr
    assert "note: no query reads 'treshold' with sx.control.value; did you mean 'threshold'?" in said.stderr
    for key in ("threshold", "treshold", "region"):
        assert "note" not in spark_ext("control", where, "set", key, "1").stderr, "read, set before, or quite another"


REFUSED = [
    ["nonsense"], ["send", "nonsense"], ["pause", "query:none"], ["pause", "nobody"],
    ["rate-limit", "source:q-in", "0"], ["rate-limit", "source:q-in"], ["rate-limit", "source:q-in", "NaN"],
    ["rate-limit", "source:q-in", "none", "--bytes", "5"], ["rate-limit", "source:q-in", "fast"],
    ["set", "k", "eu"], ["set", "k", "1", "--expires", "soon"], ["set", "k", "1", "--delivery", "later"],
    ["schema", "k", "missing.json"], ["dump", "--scope", "driver", "--heap"], ["dump", "--scope", "executor"],
    ["drain", "--wiat"], ["seek", "source:q-in", "5", "--yes"], ["seek", "source:q-in", "5"], ["seek", "nobody", "5"],
    ["event", "none"], ["events", "--status", "lost"], ["config", "--query", "none"], ["config", "--epoch", "1"],
]  # fmt: skip


def test_what_is_refused_has_code_2_and_says_why(where: str, state: State) -> None:
    for arguments in REFUSED:
        assert refused("control", where, *arguments), arguments
    assert newest(state) == ()


def test_a_seek_without_yes_says_what_it_would_do(state: State) -> None:
    offset = SourceOffset("q-in", 1, running={"a": Running(120), "b": Running({"file": "x"})})
    checkpoint = state.folder / "queries" / "q" / "checkpoint" / "offsets"
    checkpoint.mkdir(parents=True)
    (checkpoint / "7").write_text(f"v1\n{{}}\n{json.dumps(offset.to_json())}")
    for channel, position, said in (
        ("a", "200", "positions 120 to 200 would be skipped"),
        ("a", "20", "positions 20 to 120 would be read again, and written again"),
        ("b", "20", "it would continue at 20: the rows between are skipped, or read again"),
        ("c", "20", "channel 'c' of source 'q-in' would continue at 20"),
    ):
        found = refused("control", state.path, "seek", f"source:q-in/{channel}", position)
        assert said in found and "confirm it with --yes" in found
        assert ("planned up to 120, by epoch 7 of query 'q'" in found) == (channel == "a")
    assert newest(state) == ()


@pytest.mark.parametrize(
    ("status", "code"),
    [("acknowledged", 0), ("rejected", output.REJECTED), ("failed", output.NOT_DONE), ("expired", output.EXPIRED)],
)
def test_one_that_waits_ends_with_the_code_of_the_status(where: str, state: State, status: str, code: int) -> None:
    def obey() -> None:
        event = until(lambda: next((event_of(state, one.sequence) for one in newest(state)), None), "it is accepted")
        state.step(event, "applied", "q", 4)
        state.step(event, status, reason="" if code == 0 else "because of this", result={"number": 1}, ms=20)

    driver = threading.Thread(target=obey)
    driver.start()
    done = spark_ext("control", where, "set", "k", "1", "--wait", "--json")
    driver.join()
    assert done.returncode == code
    found = json.loads(done.stdout)
    assert (found["status"], found["applied"], found["result"]) == (status, {"q": 4}, {"number": 1})
    assert ("because of this" in done.stderr) == (code != 0)
    again = spark_ext("control", where, "event", found["id"], "--wait")
    assert again.returncode == code
    assert f"event 1 {status}: set_config job (key k, value 1)" in again.stdout
    assert "applied by query 'q' from epoch 4 on" in again.stdout


def test_an_event_that_is_not_obeyed_in_time(where: str) -> None:
    done = spark_ext("control", where, "pause", "--timeout", "0.05", "--json")
    assert done.returncode == output.TIMED_OUT
    found = json.loads(done.stdout)
    assert found["status"] == "accepted"
    assert f"event {found['id']} --wait" in done.stderr
    assert spark_ext("control", where, "event", found["id"], "--timeout", "0").returncode == output.TIMED_OUT
    assert spark_ext("control", where, "event", found["id"]).returncode == 0


@pytest.mark.parametrize("wait", [[], ["--timeout", "0.05"]])
def test_one_whose_job_does_not_run_says_what_it_waits_for(where: str, state: State, wait: list[str]) -> None:
    said = "the job does not run: its next start obeys this event"
    assert said not in spark_ext("control", where, "pause", *wait).stderr
    state.writer.end("FAILED")
    done = spark_ext("control", where, "resume", *wait)
    assert said in done.stderr and done.returncode == (output.TIMED_OUT if wait else 0)
    assert said in spark_ext("control", where, "event", newest(state)[0].event_id, *wait).stderr


def test_events_are_listed_oldest_first(where: str, state: State) -> None:
    for number in range(4):
        control(where, "set", f"k{number}", str(number))
    control(where, "pause", "query:q")
    state.step(event_of(state, 2), "rejected", reason="no <such> query")
    assert [one["sequence"] for one in control(where, "events")] == [1, 2, 3, 4, 5]
    assert [one["sequence"] for one in control(where, "events", "--last", "2")] == [4, 5]
    assert [one["sequence"] for one in control(where, "events", "--last", "0", "--kind", "pause")] == [5]
    assert [one["sequence"] for one in control(where, "events", "--status", "rejected", "--status", "failed")] == [2]
    assert [one["sequence"] for one in control(where, "events", "--target", "query:q")] == [5]
    assert control(where, "events", "--by", "nobody") == []
    shown = spark_ext("control", where, "events").stdout
    assert shown.splitlines()[0].split()[:4] == ["sequence", "accepted_at", "kind", "target"]
    assert "key k3, value 3" in shown and "no <such> query" in shown


def test_events_are_followed_as_they_change(where: str, state: State) -> None:
    control(where, "set", "a", "1")
    arguments = ["control", where, "events", "--follow", "--kind", "set_config", "--json"]
    follower = subprocess.Popen([sys.executable, "-m", "spark_ext", *arguments], stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    try:
        first = json.loads(follower.stdout.readline())
        assert (first["sequence"], first["status"]) == (1, "accepted")
        control(where, "pause")
        control(where, "set", "b", "1")
        assert json.loads(follower.stdout.readline())["value"]["key"] == "b"
        state.step(event_of(state, 1), "acknowledged")
        last = json.loads(follower.stdout.readline())
        assert (last["sequence"], last["status"]) == (1, "acknowledged")
        follower.send_signal(2)
        assert follower.wait(30) == 0, "Ctrl-C is how it ends"
    finally:
        follower.kill()
        follower.wait()
        follower.stdout.close()


def test_what_is_in_force(where: str, state: State) -> None:
    for arguments in (["set", "a", "1"], ["set", "b", "2", "--target", "query:q"], ["pause"], ["unset", "a"]):
        control(where, *arguments)
    found = control(where, "config")
    assert (found["query"], found["epoch"], found["sequence"], found["config"]) == ("", None, 4, {})
    standing = {"pause": {"job": {"": None}}, "set_config": {"query:q": {"b": {"key": "b", "value": 2}}}}
    assert found["standing"] == standing
    control(where, "set", "c", "3")
    assert control(where, "config")["config"] == {"c": 3}
    shown = spark_ext("control", where, "config").stdout
    assert "behind event 5:" in shown and "b = 2" in shown and "pause" in shown


def test_the_configuration_of_an_epoch(where: str, state: State) -> None:
    state.epoch("q", 4, Configuration(3, {"set_config": {"job": {"a": {"key": "a", "value": 1}}}}))
    state.epoch("q", 5, Configuration(9, {"pause": {"query:q": {"": None}}}))
    found = control(where, "config", "--query", "q", "--epoch", "4")
    assert (found["epoch"], found["sequence"], found["config"]) == (4, 3, {"a": 1})
    assert control(where, "config", "--query", "q")["epoch"] == 5
    shown = spark_ext("control", where, "config", "--query", "q", "--epoch", "4").stdout
    assert "epoch 4 of query 'q', not committed yet, behind event 3:" in shown
    assert refused("control", where, "config", "--query", "q", "--epoch", "6")


def test_the_kinds(where: str) -> None:
    found = {one["name"]: one for one in control(where, "kinds")}
    assert sorted(found) == sorted(name for name, kind in kinds().items() if kind.public)
    assert found["seek"]["confirmed"] and found["rate_limit"]["targets"] == ["channel", "source"]
    assert "rows_per_second 5000" in spark_ext("control", where, "kinds").stdout


def test_a_directory_without_a_job_is_refused_and_not_changed(tmp_path: Path) -> None:
    assert "no job was ever started" in refused("control", tmp_path / "missing", "pause")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away_and_wrong_tokens(state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_EXT_TOKEN", raising=False)
    file = tmp_path / "token"
    given = ("pause", "--token-file", file)
    with ControlServer(state.path) as server:
        url, token = server.url, str(server.token)
        assert "SPARK_EXT_TOKEN" in refused("control", url, "pause")
        file.write_text(f"{token}\n")
        file.chmod(0o644)
        assert "other users can read" in refused("control", url, *given)
        file.chmod(0o600)
        for right in (url, f"{url}/v1/jobs/orders"):
            assert spark_ext("control", right, *given).returncode == 0
        for wrong in (f"{url}/v1/jobs/other", f"{url}/elsewhere", url.replace("http://", f"http://{token}@")):
            assert token not in refused("control", wrong, *given)
        file.write_text("sxt_wrong")
        assert "invalid bearer token" in refused("control", url, *given)
    file.write_text(token)
    done = spark_ext("control", url, *given)
    assert done.returncode == output.UNREACHABLE
    assert "cannot be reached" in done.stderr and token not in done.stderr
    assert refused("control", url, "pause", "--token-file", tmp_path / "none")


def test_the_request_says_who_asks(state: State) -> None:
    found = control(state.path, "pause")
    assert found["origin"] == "cli" and found["requested_by"]
