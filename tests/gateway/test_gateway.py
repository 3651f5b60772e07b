"""What a gateway answers to HTTP, and what it stores then."""

import gzip
import json
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_ext.errors import ConfigurationError, FencedError
from spark_ext.gateway.server import GatewayServer
from spark_ext.ingest import seen
from spark_ext.ingest.log import InboxLog
from spark_ext.metrics.catalogue import LABELS
from spark_ext.server.tokens import create
from spark_ext.storage import LocalFolder
from tests.gateway.served import NAME, VARIABLE, Answer, Client, Served, describe, serving, signed, stored
from tests.server.test_connections import is_closed
from tests.support.waiting import until

BODY = b'{"id": 1, "amount": 1.50}'
PATH = f"/v1/inboxes/{NAME}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Any sender with a token, bodies of at most 1,000 bytes."""
    about = {"max_body": 1_000}
    limits = {"body_seconds": 0.2, "header_seconds": 0.2, "connections": 8, "refused_burst": 10_000}
    with serving(tmp_path_factory.mktemp("any"), about=about, limits=limits) as found:
        yield found


def raw(port: int, content: bytes, *, end: bool = False) -> bytes:
    """What is answered to bytes, until the gateway closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as own:
        own.sendall(content)
        if end:
            own.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while part := own.recv(65_536):
                found += part
        except ConnectionError:
            pass
        return found


def refused(answer: Answer, status: int, reason: str, said: str = "") -> None:
    assert (answer.status, answer.problem.get("reason")) == (status, reason), answer
    assert answer.problem["type"].endswith(reason) and answer.problem["do"] and answer.problem["kept"]
    assert said in answer.problem["detail"] and answer.problem["operator"] == f"inbox '{NAME}', gateway 'g1'"


# -- acceptance -------------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_is_stored_with_all_that_its_sender_said(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        one = own.post(BODY, "/eu/new?shop=7", Idempotency_Key="k-1", Content_Type="application/json", X_Api_Key="hush")
        assert (one.status, one.body) == (202, b"")
        assert one.headers["spark-ext-level"] == "disk" and one.headers["spark-ext-repeat"] == "0"
        assert one.headers["spark-ext-exactly-once"] == "true" and one.headers["spark-ext-token"]
        lines = gzip.compress(b'{"id": 2}\n\n{"id": 3}\n')
        assert own.post(lines, Content_Type="application/x-ndjson", Content_Encoding="gzip").status == 202
        chunks = own.ask("POST", PATH, iter([b"a", b"b" * 500, b"c"]))
        assert chunks.status == 202 and chunks.headers["spark-ext-exactly-once"] == "false"
    found = stored(tmp_path)
    assert [row["body"] for row in found] == [BODY, b'{"id": 2}', b'{"id": 3}', b"a" + b"b" * 500 + b"c"]
    assert [row["sequence"] for row in found] == [0, 1, 2, 3]
    first = found[0]
    assert (first["event_id"], first["path"], first["query"]) == ("k-1", "eu/new", "shop=7")
    names = {name for name, _ in first["headers"]}
    assert "content-type" in names and not names & {"authorization", "x-api-key"}


def test_requests_may_follow_each_other_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {own.server.token}\r\n"
        many = b"".join(f"{head}Content-Length: 3\r\n\r\n{n:03}".encode() for n in range(50))
        last = f"{head}Content-Length: 3\r\nConnection: close\r\n\r\n050".encode()
        assert raw(own.port, many + last).count(b"HTTP/1.1 202 ") == 51
    assert [int(row["body"]) for row in stored(tmp_path)] == list(range(51))


@pytest.mark.parametrize(("scheme", "status"), [("stripe", 202), ("github", 202), ("shopify", 200), ("slack", 200)])
def test_vendors_need_no_token_but_a_signature(tmp_path: Path, scheme: str, status: int) -> None:
    body = b'{"id": "evt_1", "event_id": "Ev1", "type": "event_callback"}'
    with serving(tmp_path, scheme) as own:
        assert own.server.token is None
        assert own.post(body, **signed(scheme, body)).status == status
        for headers in (
            {},
            signed(scheme, body, "another secret"),
            signed(scheme, body + b" "),
            *((signed(scheme, body, at=time.time() - 1_000),) if scheme in ("stripe", "slack") else ()),
        ):
            answer = own.post(body, **headers)
            refused(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"]
    assert len(stored(tmp_path)) == 1


def test_standard_webhooks_with_a_token_that_needs_the_scope(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token, reader = create(tokens, "shop", ["ingest"]), create(tokens, "reader", ["read", "control"])
    with serving(tmp_path, "standard", about={"tokens": str(tokens)}) as own:
        headers = signed("standard", BODY)
        assert own.post(BODY, **headers).status == 202
        assert own.post(BODY, f"/t/{token}", **headers).status == 202
        refused(own.post(BODY, "/t/wrong", **headers), 401, "unauthorized", "token")
        refused(own.post(BODY, f"/t/{reader}", **headers), 403, "forbidden", "scope ingest")
        refused(own.post(BODY, f"/t/{token}"), 401, "unauthorized", "webhook-id")


def test_a_ping_and_a_verification_are_answered_and_not_stored(tmp_path: Path) -> None:
    challenge = b'{"type": "url_verification", "challenge": "3eZbrw1a"}'
    with serving(tmp_path / "slack", "slack") as own:
        assert own.post(challenge, **signed("slack", challenge)).body == b"3eZbrw1a"
        wrong = own.post(challenge, **signed("slack", challenge, "wrong"))
        refused(wrong, 401, "unauthorized")
        assert "clock" not in wrong.problem["do"], "the time is right"
        assert own.accepted == 0
    with serving(tmp_path / "github", "github") as own:
        assert own.post(BODY, **signed("github", BODY, X_GitHub_Event="ping")).status == 200
        refused(own.post(BODY, **{**signed("github", b"x"), "X_GitHub_Event": "ping"}), 401, "unauthorized")
        assert own.accepted == 0


def test_cloudevents_ask_before_they_send(served: Served) -> None:
    plain = Client(served.port)
    allowed = plain.ask("OPTIONS", PATH, WebHook_Request_Origin="events.example.com", WebHook_Request_Rate="120")
    assert allowed.status == 200 and allowed.headers["webhook-allowed-origin"] == "events.example.com"
    assert allowed.headers["webhook-allowed-rate"] == "120" and "POST" in allowed.headers["allow"]
    assert plain.ask("OPTIONS", PATH).status == 204
    refused(plain.ask("OPTIONS", f"{PATH}/t/wrong"), 401, "unauthorized")
    batch = b'[{"id": "1", "source": "s"}, {"id": "2", "source": "s"}]'
    answer = served.post(batch, Content_Type="application/cloudevents-batch+json")
    assert answer.headers["spark-ext-exactly-once"] == "true", "each event has an identity"


def test_what_is_known_of_producers_and_receipts(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MOST_RANGES", 1)
    for number, repeats in ((5, "0"), (7, "0"), (8, "0"), (8, "1")):
        sent = served.post(BODY, X_Producer="p/1", X_Sequence=str(number))
        assert (sent.status, sent.headers["spark-ext-repeat"]) == (202, repeats)
    refused(served.post(BODY, X_Producer="p/1", X_Sequence="5"), 409, "forgotten", "number 5 is below 6")
    about = json.loads(served.ask("GET", f"{PATH}/producers/p%2F1").body)
    assert about == {"producer": "p/1", "acknowledged": 8, "committed": None}
    assert served.post(BODY, X_Producer="p/1", X_Sequence="9").status == 202
    receipt = sent.headers["spark-ext-token"]
    assert json.loads(served.ask("GET", f"{PATH}/receipts/{receipt}").body) == {"receipt": receipt, "in_table": False}
    assert json.loads(served.ask("GET", f"{PATH}/receipts/g9:1").body)["in_table"] is None
    refused(Client(served.port).ask("GET", f"{PATH}/producers/p"), 401, "unauthorized")


def test_an_answer_may_wait_for_the_table(tmp_path: Path) -> None:
    with serving(tmp_path, about={"ack": "table"}) as own, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(own.post, BODY, Idempotency_Key="k")
        log = InboxLog(LocalFolder(tmp_path / "inboxes" / NAME / "gateways" / "g1"), "a test")
        until(lambda: log.look().total, "the event is in the log")
        assert not asked.done()
        log.release(log.look().last + 1)  # as a job does once the event is in its table
        assert asked.result().status == 200 and asked.result().headers["spark-ext-level"] == "table"
        waits = pool.submit(own.post, BODY, Idempotency_Key="l")
        until(lambda: log.look().total > 1, "the event is in the log")
        own.server.stop()
        refused(waits.result(), 503, "unavailable")
        assert "may have been stored" in waits.result().problem["kept"]


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_each_refusal_has_a_status_and_stores_nothing(served: Served) -> None:
    before, rejected = served.accepted, served.server.figures().rejected
    ask, post = served.ask, served.post
    refused(post(b""), 400, "malformed", "empty")
    refused(post(BODY, X_Producer="p"), 400, "malformed", "x-sequence")
    refused(post(BODY, Authorization="Bearer sxt_none"), 401, "unauthorized")
    refused(post(BODY, Authorization=f"Basic {served.server.token}"), 401, "unauthorized")
    refused(post(BODY, Host="evil.test"), 403, "foreign_host")
    refused(post(BODY, Origin="http://evil.test"), 403, "foreign_origin")
    refused(ask("POST", "/v1/inboxes/other", BODY), 404, "not_found")
    refused(ask("GET", "/nothing"), 404, "not_found")
    refused(ask("GET", PATH), 405, "method")
    assert ask("DELETE", PATH).headers["allow"] == "POST, OPTIONS"
    refused(ask("POST", "/health", BODY), 405, "method")
    refused(ask("GET", f"{PATH}/ws"), 405, "method")
    refused(post(b"x" * 1_001), 413, "too_large")
    refused(post(gzip.compress(b"x" * 100_000), Content_Encoding="gzip"), 413, "too_large")
    refused(post(b"no gzip", Content_Encoding="gzip"), 400, "malformed")
    refused(post(BODY, Content_Encoding="br"), 415, "media_type")
    assert served.accepted == before
    added = Counter(served.server.figures().rejected) - Counter(rejected)
    assert sum(added.values()) == 16 and {*added} <= {*LABELS["status"].values}
    assert ask("GET", "/health").body == b'{"status":"ok"}'


def test_a_schema_may_refuse_what_does_not_fit(tmp_path: Path) -> None:
    columns = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    with serving(tmp_path, about={"columns": columns, "on_bad_row": "reject"}) as own:
        assert own.post(b'{"id": 1}', Content_Type="application/json").status == 202
        refused(own.post(b'{"id": "x"}', Content_Type="application/json"), 422, "unfit", "id")
        refused(own.post(b"no JSON", Content_Type="application/json"), 422, "unfit")
    assert len(stored(tmp_path)) == 1


def test_too_many_requests_of_a_token_or_a_stranger(tmp_path: Path) -> None:
    limits = {"rate": 1e-3, "burst": 2, "refused_rate": 1e-3, "refused_burst": 2}
    with serving(tmp_path, limits=limits) as own:
        answers = [own.post(BODY) for _ in range(3)]
        assert [one.status for one in answers] == [202, 202, 429]
        refused(answers[2], 429, "rate")
        assert int(answers[2].headers["retry-after"]) > 100
        assert [own.post(BODY, Authorization="Bearer x").status for _ in range(4)] == [401, 401, 429, 429]


def test_a_full_inbox_asks_to_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, about={"max_bytes": 2_000, "max_body": 1_000}) as own:
        answers = [own.post(b"x" * 500) for _ in range(6)]
        assert {one.status for one in answers} == {202, 429}
        refused(answers[-1], 429, "full")
        assert int(answers[-1].headers["retry-after"]) > 0
        accepted = sum(one.status == 202 for one in answers)
    assert len(stored(tmp_path)) == accepted


# -- clients that do not behave ---------------------------------------------------------------------------------------


def test_a_request_that_is_cut_off_is_not_stored(served: Served) -> None:
    before = served.accepted
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.server.token}\r\n"
    whole = f"{head}Content-Length: 10\r\n\r\n0123456789".encode()
    for size in range(len(head), len(whole)):
        assert raw(served.port, whole[:size], end=True) == b""
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n".encode()
    assert raw(served.port, chunked, end=True) == b""
    assert raw(served.port, chunked + b"nonsense\r\n").startswith(b"HTTP/1.1 400 ")
    assert served.accepted == before


def test_slow_bodies_and_headers_are_not_waited_for(served: Served) -> None:
    before = served.accepted
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.server.token}\r\n"
    assert raw(served.port, head.encode()) == b""
    assert raw(served.port, b"") == b""  # a connection without a request
    late = raw(served.port, f"{head}Connection: close\r\nContent-Length: 10\r\n\r\n01234".encode())
    assert late.startswith(b"HTTP/1.1 408 ")
    assert served.accepted == before


def test_endless_headers_and_bodies_are_cut_off(served: Served) -> None:
    before = served.accepted
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.server.token}\r\n".encode()
    for begin in (b"GET /", head + b"X: ", head + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffffff\r\n"):
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as own:
            own.sendall(begin)
            sent = 0
            try:
                while sent < 50_000_000:
                    sent += own.send(b"x" * 65_536)
            except ConnectionError:
                pass
            assert sent < 20_000_000  # what the kernel holds for both sides
    asked = raw(served.port, head + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n")
    assert asked.startswith(b"HTTP/1.1 413 ")  # before the body was sent
    assert served.accepted == before


def test_idle_connections_keep_nobody_out(tmp_path: Path) -> None:
    with serving(tmp_path, limits={"connections": 4, "header_seconds": 1}) as own, ExitStack() as stack:
        at = ("127.0.0.1", own.port)
        idle = list[socket.socket]()
        while len(idle) < 2_000:  # no more at once than wait to be accepted: the kernel would let them wait for 1 s
            idle += [stack.enter_context(socket.create_connection(at, timeout=30)) for _ in range(50)]
            assert own.post(BODY).status == 202
        until(lambda: all(map(is_closed, idle)), "all are closed: the newest ones after a while")


def test_no_token_is_in_a_line_or_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path) as own:
        token, guess = own.server.token, "sxt_" + "g" * 43
        with caplog.at_level(logging.DEBUG):
            answers = [
                own.post(BODY, f"/t/{token}/x", X_Original_URI=f"{PATH}/t/{token}/x"),
                own.post(b"", f"/t/{token}/x"),
                own.post(BODY, f"/t/{guess}"),
                own.post(BODY, f"/t/{guess}%2f/..", Host="evil.test"),
                own.ask("GET", f"/v1/inboxes/{NAME}/t/{token}"),
                own.ask("GET", f"/v1/inboxes/other/t/{token}"),
            ]
        assert [one.status for one in answers] == [202, 400, 401, 403, 405, 404]
        assert len(caplog.records) >= 3
        for text in (caplog.text, *(one.body.decode() for one in answers)):
            assert token is not None and token not in text and guess not in text and "g" * 43 not in text


# -- the description, the start and the end ---------------------------------------------------------------------------


def test_what_a_start_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    def start(said: str, change: Callable[[], Any], **more: Any) -> None:
        change()
        with pytest.raises(ConfigurationError, match=said), GatewayServer(str(tmp_path), NAME, "g1", **more):
            pass

    start("does not exist", lambda: None)
    start("cannot be read", lambda: describe(tmp_path, "github"))
    monkeypatch.setenv(VARIABLE, "a secret")
    start("wait for a few seconds", lambda: describe(tmp_path, "slack", ack="table"))
    start("wait for a few seconds", lambda: describe(tmp_path, "shopify", ack="table"))
    start("in the clear", lambda: describe(tmp_path), host="0.0.0.0")
    start("cannot be bound", lambda: describe(tmp_path), port=70_000)


def test_a_changed_description_is_obeyed_without_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, about={"max_body": 100}) as own:
        assert own.post(BODY).status == 202
        refused(own.post(b"x" * 200), 413, "too_large")
        path = tmp_path / "inboxes" / NAME / "inbox.json"
        path.write_text(path.read_text().replace('"max_body": 100', '"max_body": 300'))
        own.server.refresh()
        assert own.post(b"x" * 200).status == 202
        path.write_text("damaged")
        own.server.refresh()
        assert own.post(BODY).status == 202
    assert len(stored(tmp_path)) == 3


def test_a_gateway_ends_when_another_process_has_taken_over(tmp_path: Path) -> None:
    with serving(tmp_path, about={"ack": "store"}) as old:
        assert old.post(BODY).headers["spark-ext-level"] == "store"
        with GatewayServer(str(tmp_path), NAME, "g1") as new:
            refused(old.post(BODY), 503, "unavailable")
            with pytest.raises(FencedError):
                old.server.run(threading.Event())
            assert Client(int(new.url.split(":")[2].partition("/")[0]), new.token).post(BODY).status == 202
    assert len(stored(tmp_path)) == 2


def test_a_drain_ends_the_gateway(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        assert own.post(BODY).status == 202
        (tmp_path / "inboxes" / NAME / "drain.json").write_text("{}")
        assert own.server.run(threading.Event())
        answer = own.post(BODY)
        refused(answer, 503, "draining")
        assert answer.headers["retry-after"]
        assert own.ask("GET", "/health").status in (200, 503)
    assert len(stored(tmp_path)) == 1
