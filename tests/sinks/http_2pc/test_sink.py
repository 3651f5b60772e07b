"""`http_2pc` against a real receiver that throttles, fails, cuts connections and forgets. Without Spark."""

import base64
import json
import socket
import threading
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as T

from spark_ext.delta.transactions import owner_number
from spark_ext.errors import CommitError, ConfigurationError, DataError, FencedError, SparkExtError, TransientError
from spark_ext.sinks.contract import CommitOutcome, TwoPhaseCommitSink
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.testing.children import frozen, killed_at, was_fenced
from spark_ext.testing.sink_driver import NUMBERS, Driver, numbered, run_epoch
from tests.conformance.test_commit_http import TOKEN, HttpTarget
from tests.servers.receiver import Receiver
from tests.sinks.http_2pc.hostile import playing

QUICK = {"commit_attempts": "3", "commit_backoff": "1 ms"}


def started(target: HttpTarget, **options: str) -> Driver:
    return Driver(target, options={**QUICK, **options}).claim()


def numbers(receiver: Receiver) -> list[int]:
    return [row["id"] for row in receiver.rows()]


@pytest.mark.parametrize(("body", "content"), [("lines", "application/x-ndjson"), ("array", "application/json")])
def test_what_requests_carry(target: HttpTarget, receiver: Receiver, body: str, content: str) -> None:
    driver = started(
        target, body=body, batch_rows="2", compression="gzip", headers='{"X-Other": "from options"}', method="PUT"
    )
    driver.run(3, numbered(0, 5))
    assert numbers(receiver) == list(range(5))
    asked = receiver.requests()
    job = f"{owner_number(driver.job_id):016x}"
    assert [one["key"] for one in asked] == [f"out:{job}:0:{driver.query_id}:3:{chunk}" for chunk in range(3)]
    assert {one["content_type"] for one in asked} == {content}
    assert {one["authorization"] for one in asked} == {f"Bearer {TOKEN}"}
    assert {one["other"] for one in asked} == {"from options"}
    assert [one["last"] for one in asked] == ["false", "false", "true"]
    assert target.leftovers() == set()
    assert [path.name for path in (target.outbox / "out").iterdir()] == ["_delta_log"], "no folder per epoch is left"


def test_two_jobs_of_one_savepoint_are_two_streams(target: HttpTarget, receiver: Receiver, tmp_path: Path) -> None:
    """They have lineage, query id and epoch in common, and each an outbox of its own."""
    started(target).run(3, numbered(0, 5))
    fork = Driver(HttpTarget(receiver.url, receiver.folder, tmp_path / "fork"), job_id="job-2", options=QUICK).claim()
    fork.run(3, numbered(5, 9))
    assert numbers(receiver) == list(range(9)) and receiver.repeats() == 0


def test_environment_credentials(target: HttpTarget, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"url": receiver.url, "outbox": str(target.outbox), "token_env": "T_O", "headers_env": "H_D", **QUICK}
    with pytest.raises(ConfigurationError, match="variable 'H_D' is not set"):
        HttpTwoPhaseCommit({"uid": "out", **options}).validate(NUMBERS)
    monkeypatch.setenv("T_O", "from-the-environment")
    monkeypatch.setenv("H_D", '{"idempotency-key": "mine-and-secret"}')
    with pytest.raises(ConfigurationError, match="header 'idempotency-key' is the idempotency key") as refused:
        HttpTwoPhaseCommit({"uid": "out", **options}).validate(NUMBERS)
    assert "mine-and-secret" not in str(refused.value)
    monkeypatch.setenv("H_D", '{"X-Other": "also"}')
    target.sink = lambda uid="out", **given: HttpTwoPhaseCommit({"uid": uid, **options})  # type: ignore[method-assign]
    Driver(target).claim().run(0, numbered(0, 1))
    assert [(one["authorization"], one["other"]) for one in receiver.requests()] == [
        ("Bearer from-the-environment", "also")
    ]


def test_a_replay_sends_what_was_recorded(target: HttpTarget, receiver: Receiver) -> None:
    """The receiver would refuse a key that comes with other rows."""
    started(target, batch_rows="2").run(0, numbered(0, 2))
    killed_at("http.answered", run_two_rows_a_request, target)
    assert numbers(receiver) == [0, 1, 2, 3], "the first request of three had its effect"
    again = Driver(target, 2, options={**QUICK, "batch_rows": "3", "body": "array"}).claim()
    again.run(1, numbered(2, 8)[::-1], partitions=3)
    assert numbers(receiver) == list(range(8))
    assert receiver.repeats() == 1
    assert target.leftovers() == set(), "what the replay had prepared in vain is gone"


def run_two_rows_a_request(target: HttpTarget) -> None:
    Driver(target, options={"batch_rows": "2"}).run(1, numbered(2, 8))


def test_a_connection_cut_after_the_effect_repeats_nothing(target: HttpTarget, receiver: Receiver) -> None:
    driver = started(target, batch_rows="1")
    receiver.behave({"cut": True}, {}, {"cut": True})
    driver.run(0, numbered(0, 3))
    assert numbers(receiver) == [0, 1, 2]
    assert receiver.repeats() == 2


def test_a_receiver_that_asks_is_waited_for(target: HttpTarget, receiver: Receiver, waits: list[float]) -> None:
    driver = started(target, batch_rows="1")
    soon = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=100), usegmt=True)
    asked = [{"status": 429, "headers": {"Retry-After": "7"}}] * 6
    receiver.behave(*asked, {"status": 503, "headers": {"Retry-After": soon}})
    driver.run(0, numbered(0, 2))
    assert waits[:6] == [7.0] * 6
    assert len(waits) == 7 and 50 < waits[6] <= 100
    assert driver.outcomes == [CommitOutcome.COMMITTED] and driver.attempts == 1
    assert numbers(receiver) == [0, 1]


def test_patience_has_a_limit(target: HttpTarget, receiver: Receiver, waits: list[float]) -> None:
    driver = started(target, patience="1 min", batch_rows="1")
    receiver.behave({}, {"status": 429, "headers": {"Retry-After": "3600"}, "always": True})
    with pytest.raises(CommitError, match="asks to wait 3600 s, more than the option 'patience' allows"):
        driver.run(0, numbered(0, 2))
    assert waits == [] and [request["status"] for request in receiver.requests()] == [201, 429]


def test_only_failures_without_progress_count(target: HttpTarget, receiver: Receiver) -> None:
    driver = started(target, batch_rows="1")
    receiver.behave(*[{"status": 500}, {}] * 18)
    driver.run(0, numbered(0, 18))
    assert numbers(receiver) == list(range(18))
    assert len(receiver.requests()) == 36, "what was acknowledged is not sent again"


@pytest.mark.parametrize(
    ("status", "kind", "do"),
    [
        (400, DataError, "the recorded epoch is sent first"),
        (422, DataError, "the recorded epoch is sent first"),
        (401, ConfigurationError, "'token'"),
        (404, ConfigurationError, "'url'"),
        (302, ConfigurationError, "Redirects are not followed"),
        (307, ConfigurationError, "Redirects are not followed"),
        (412, FencedError, "the newer start"),
    ],
)
def test_final_refusal(target: HttpTarget, receiver: Receiver, status: int, kind: type[SparkExtError], do: str) -> None:
    driver = started(target)
    elsewhere = {"Location": "http://127.0.0.1:1/elsewhere"} if status < 400 else {}
    receiver.behave({"status": status, "text": f"no: {TOKEN} " + "x" * 1000, "headers": elsewhere})
    messages = [driver.write(0, numbered(0, 2))]
    with pytest.raises(kind) as refused:
        driver.commit(messages, 0)
    text = str(refused.value)
    assert f"status {status}: no: *** xxx" in text and TOKEN not in text and "x" * 400 not in text
    assert do in refused.value.do
    assert driver.attempts == 1, "not tried again"
    driver.commit(messages, 0)
    assert numbers(receiver) == [0, 1], "once the receiver is corrected the recorded epoch goes through"


@pytest.mark.parametrize("before", [280, 295])
@pytest.mark.parametrize("said", ["Bearer {}", "the token {} is not valid"])
def test_a_secret_in_the_answer_is_hidden(target: HttpTarget, receiver: Receiver, before: int, said: str) -> None:
    """Also where the shown part of the answer would end in the middle of it, and without the word before it."""
    token = "tok-5Ecr3t-and-l0ng"
    driver = started(target, headers=json.dumps({"X-Authorization": f"Bearer {token}"}))
    receiver.behave({"status": 400, "text": "x" * (before - said.index("{")) + said.format(token)})
    with pytest.raises(DataError) as refused:
        driver.run(0, numbered(0, 2))
    assert "xxx" in str(refused.value) and "tok-5" not in str(refused.value)


def test_a_secret_of_the_address_is_hidden_too(target: HttpTarget, receiver: Receiver) -> None:
    driver = started(target, url=f"{receiver.url}?v=1&api_key=k%40y-12345")
    receiver.behave({"status": 400, "text": "neither k%40y-12345 nor k@y-12345 is known"})
    with pytest.raises(DataError, match=r"neither \*\*\* nor \*\*\* is known") as refused:
        driver.run(0, numbered(0, 2))
    assert "y-12345" not in str(refused.value)


@pytest.mark.parametrize("status", [200, 400])
def test_an_undecodable_answer_counts_by_its_status(target: HttpTarget, receiver: Receiver, status: int) -> None:
    driver = started(target)
    receiver.behave({"status": status, "text": "plain", "headers": {"Content-Encoding": "gzip"}})
    if status == 200:
        driver.run(0, numbered(0, 2))
    else:
        with pytest.raises(DataError, match="status 400"):
            driver.run(0, numbered(0, 2))


def test_redact_hides_the_answer(target: HttpTarget, receiver: Receiver) -> None:
    driver = started(target, redact="true")
    receiver.behave({"status": 400, "text": "row 1: Jane Doe"})
    with pytest.raises(DataError) as refused:
        driver.run(0, numbered(0, 2))
    assert "Jane" not in str(refused.value) and "status 400" in str(refused.value)


@pytest.mark.parametrize(("said", "sent"), [("done", []), ("retry", [0, 1])])
def test_conflict_is_what_the_option_says(target: HttpTarget, receiver: Receiver, said: str, sent: list[int]) -> None:
    driver = started(target, conflict=said)
    receiver.behave({"status": 409})
    driver.run(0, numbered(0, 2))
    assert numbers(receiver) == sent
    assert target.leftovers() == set()


def test_a_receiver_that_is_too_slow_is_asked_again(target: HttpTarget, receiver: Receiver) -> None:
    driver = started(target, request_timeout="300 ms", commit_attempts="8", commit_backoff="500 ms")
    receiver.behave({"delay": 0.8})
    driver.run(0, numbered(0, 2))
    assert numbers(receiver) == [0, 1]


@pytest.mark.parametrize(("patience", "attempts"), [("1 ms", 2), ("10 min", 3)])
def test_a_silent_receiver_is_reported(target: HttpTarget, receiver: Receiver, patience: str, attempts: int) -> None:
    """By the second attempt at the earliest: one slow answer is no outage."""
    options = {
        "request_timeout": "300 ms",
        "commit_attempts": "3",
        "commit_backoff": "1 ms",
        "commit_patience": patience,
    }
    driver = started(target, **options)
    receiver.behave(*[{"delay": 3.0}] * 3)
    with pytest.raises(CommitError, match=f"in {attempts} attempts"):
        driver.run(0, numbered(0, 2))
    assert len(target.leftovers()) > 0, "the epoch is decided, and sent by the next start"


@pytest.mark.parametrize("point", ["http.decided", "http.before_request", "http.answered", "http.before_settle"])
def test_a_zombie_repeats_nothing(target: HttpTarget, receiver: Receiver, tmp_path: Path, point: str) -> None:
    Driver(target).claim()
    second = Driver(target, 2)
    with frozen(tmp_path, point, run_epoch, target, 1, 0, 0, 5) as zombie:
        second.claim()
        second.run(0, numbered(0, 5)[::-1])
        second.run(1, numbered(5, 9))
        assert was_fenced(said := zombie.wake()), said
    assert numbers(receiver) == list(range(9))
    second.run(2, numbered(9, 10))
    assert target.leftovers() == set()


def test_files_that_a_crash_left_go_with_the_next_start(target: HttpTarget, receiver: Receiver) -> None:
    Driver(target).claim()
    killed_at("http.recorded", run_epoch, target, 1, 0, 0, 5)
    assert len(target.leftovers()) == 1
    second = Driver(target, 2).claim()
    assert target.leftovers() == set()
    second.run(0, numbered(0, 5))
    second.run(1, numbered(5, 6))
    assert numbers(receiver) == list(range(6)) and receiver.repeats() == 0


def test_an_epoch_that_the_outbox_has_lost_is_reported(target: HttpTarget, receiver: Receiver) -> None:
    driver = started(target)
    receiver.kill()
    with pytest.raises(CommitError):
        driver.run(0, numbered(0, 5))
    receiver.start()
    for file in target.outbox.rglob("part-*.parquet"):
        file.unlink()
    with pytest.raises(CommitError, match="the outbox could not be read"):
        driver.run(0, numbered(0, 5))
    assert receiver.rows() == []


def test_a_header_with_a_newline_and_a_type_not_json_are_refused(tmp_path: Path) -> None:
    def sink(**options: str) -> TwoPhaseCommitSink:
        return HttpTwoPhaseCommit({"uid": "a", "url": "https://host/x", "outbox": str(tmp_path), **options})

    with pytest.raises(ConfigurationError, match="the header 'X-A' contains characters"):
        sink(headers='{"X-A": "one\\ntwo"}').validate(NUMBERS)
    odd = T.StructType([T.StructField("span", T.DayTimeIntervalType())])
    with pytest.raises(ConfigurationError, match="column 'span' has the type interval"):
        sink().validate(odd)
    assert sink(token="tok-1", headers='{"K": "v-1"}').options.public()["token"] == "***"
    assert "v-1" not in repr(sink(headers='{"K": "v-1"}').options)


def test_a_failed_attempt_says_what_is_in_doubt(target: HttpTarget, receiver: Receiver) -> None:
    driver = started(target)
    receiver.behave({"status": 503, "always": True})
    with pytest.raises(CommitError) as failure:
        driver.run(0, numbered(0, 2))
    cause: Any = failure.value.__cause__
    assert isinstance(cause, TransientError)
    assert "request 0" in cause.operator and "epoch 0" in cause.operator and "recorded in the outbox" in cause.kept


@pytest.mark.parametrize("variable", ["ALL_PROXY", "https_proxy"])
def test_a_proxy_that_is_not_http_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    sink = HttpTwoPhaseCommit({"uid": "a", "url": "https://shop.example/x", "outbox": str(tmp_path / "outbox")})
    monkeypatch.setenv(variable, "socks5://me:pass-word@127.0.0.1:1080")
    with pytest.raises(
        ConfigurationError, match=f"variable {variable.upper()} names a proxy that is not an HTTP proxy"
    ) as error:
        sink.validate(NUMBERS)
    assert "pass-word" not in str(error.value)
    monkeypatch.setenv("NO_PROXY", "shop.example")
    sink.validate(NUMBERS)


def test_requests_go_through_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with playing(play) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("http://", "http://me:pass%20word@").removesuffix("/rows"))
        driver = Driver(HttpTarget("http://shop.example/rows?a=\u00e4", tmp_path, tmp_path / "outbox")).claim()
        driver.run(0, numbered(0, 2))
    assert proxy.requests[0].startswith(b"POST http://shop.example/rows?a=%C3%A4 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:pass word") in proxy.requests[0]


def test_credentials_without_encryption_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for host in ("shop.example", "127.0.0.1", "localhost"):
        url, place = f"http://{host}/x?api_key=k-e-y", str(tmp_path / "outbox")
        HttpTwoPhaseCommit({"uid": "a", "url": url, "outbox": place, "token": "t-0-k"}).validate(NUMBERS)
    (said,) = [record.getMessage() for record in caplog.records if "without encryption" in record.getMessage()]
    assert "shop.example" in said and "(Authorization, api_key)" in said and "t-0-k" not in said
