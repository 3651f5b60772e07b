"""The listener `webhook` against a real HTTP server."""

import base64
import gzip
import hashlib
import hmac
import json
import socket
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from spark_ext import masking
from spark_ext.errors import ConfigurationError
from spark_ext.incidents.types import EventKind, MetricsContext, Severity
from spark_ext.listeners.webhook import WebhookFormat, WebhookListener, payload, signature
from tests.incidents.made import OPEN, RESOLVED, change, event
from tests.listeners.endpoint import serving
from tests.sinks.http_2pc.hostile import Play, playing, trickle

CONTEXT = MetricsContext(job="shop", incarnation=2, query="q", epoch=7)


def sent(listener: WebhookListener, **fields: Any) -> None:
    listener.changed(change("abc", **fields), CONTEXT)
    listener.close()


def test_a_change_is_json_with_what_is_known() -> None:
    with serving() as endpoint:
        sent(WebhookListener(url=endpoint.url), new=RESOLVED, old=OPEN, count=3, seconds=1, labels={"team": "a"})
    ((headers, body),) = endpoint.requests
    found = json.loads(body)
    assert headers["content-type"] == "application/json" and "spark-ext-signature" not in headers
    assert headers["spark-ext-delivery"] == "abc-1767225601000-resolved"
    assert (found["old"], found["new"], found["cause"], found["count"]) == ("OPEN", "RESOLVED", "because", 3)
    assert found["at"] == "2026-01-01T00:00:01+00:00"
    assert found["incident"]["incident_id"] == "abc" and found["incident"]["labels"] == {"team": "a"}
    assert found["incident"]["severity"] == "WARNING"
    known = {"job": "shop", "incarnation": 2, "query": "q", "epoch": 7}
    assert found["context"] == known, "what is not known is left out"


def test_an_event_is_json_under_its_id() -> None:
    with serving() as endpoint:
        listener = WebhookListener(url=endpoint.url)
        listener.happened(event("COMPLETED", EventKind.CHECKPOINT, 1, details={"checkpoint_id": 7}), CONTEXT)
        listener.close()
    ((headers, body),) = endpoint.requests
    found = json.loads(body)
    assert headers["spark-ext-delivery"] == found["event"]["event_id"] == "COMPLETED-1"
    assert (found["event"]["kind"], found["event"]["at"]) == ("checkpoint", "2026-01-01T00:00:01+00:00")
    assert found["event"]["details"] == {"checkpoint_id": 7} and found["context"]["job"] == "shop"


SAMPLE = change(
    "8c1f02aa", severity=Severity.ERROR, what="rates.py, line 12: <KeyError> & more\nsecond line",
    action="restart 1 in 100 ms", labels={"type": "USER_CODE", "origin": "user"},
)  # fmt: skip


@pytest.mark.parametrize("form", list(WebhookFormat), ids=lambda form: form.value)
def test_the_body_of_each_format_is_the_one_on_the_page(form: WebhookFormat) -> None:
    with serving() as endpoint:
        listener = WebhookListener(url=endpoint.url, format=form.value)
        listener.changed(SAMPLE, CONTEXT)
        listener.close()
    ((headers, body),) = endpoint.requests
    page = (Path(__file__).parents[2] / "docs/notifications.md").read_text().split("## What a webhook gets")[1]
    shown = page.split(f"`format: {form.value}`")[1].split("```json\n")[1].split("```")[0]
    assert json.loads(body) == json.loads(shown)
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("form", [WebhookFormat.SLACK, WebhookFormat.TEAMS], ids=lambda form: form.value)
def test_a_chat_gets_the_end_an_event_and_no_text_without_limit(form: WebhookFormat) -> None:
    over = change("a", new=RESOLVED, old=OPEN, count=3, what="x" * 100_000, action="y" * 100_000)
    with serving() as endpoint:
        listener = WebhookListener(url=endpoint.url, format=form.value)
        listener.changed(over, CONTEXT)
        listener.happened(event("COMPLETED", EventKind.CHECKPOINT), CONTEXT)
        listener.changed(change("b", new=RESOLVED, old=None), CONTEXT)
        listener.close()
    (_, end), (_, told), (_, first) = endpoint.requests
    assert b"[resolved] shop: late" in end and b"because" in end and len(end) < 28_000
    assert b"checkpoint COMPLETED" in told
    assert b"[WARNING] shop: late" in first, "that it is over already is not its news"


def test_a_message_to_slack_has_no_empty_line() -> None:
    over = payload(change("a", new=RESOLVED, old=OPEN, what=""), CONTEXT, WebhookFormat.SLACK)["text"]
    assert over.startswith("*[resolved] shop: late*\nwhere: ")


def test_a_secret_that_a_chat_would_not_check_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="slack checks no signature: leave 'secret' out"):
        WebhookListener(url="https://hooks.slack.com/services/x", format="slack", secret="hunter2-hunter2")
    with pytest.raises(ConfigurationError, match="option 'format'"):
        WebhookListener(url="https://hooks.slack.com/services/x", format="slak")


def test_it_is_signed_and_names_the_user_of_its_address() -> None:
    """As the receiver checks it, by what the docs say."""
    with serving() as endpoint:
        url = endpoint.url.replace("://", "://ann:hunter%40two@")
        sent(WebhookListener(url=url, secret="hunter2-hunter2", headers={"X-Team": "a-very-long-team"}))
    ((headers, body),) = endpoint.requests
    parts = dict(part.split("=") for part in headers["spark-ext-signature"].split(","))
    code = hmac.new(b"hunter2-hunter2", parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(parts["v1"], code)
    assert headers["x-team"] == "a-very-long-team"
    assert headers["authorization"] == "Basic " + base64.b64encode(b"ann:hunter@two").decode()
    assert signature("a", 1, b"x") != signature("a", 2, b"x") != signature("b", 2, b"x")


@pytest.mark.parametrize("statuses", [[503], [429, 408]])
def test_what_may_pass_is_repeated_with_the_same_delivery(statuses: list[int]) -> None:
    with serving(statuses) as endpoint:
        sent(WebhookListener(url=endpoint.url))
    assert len(endpoint.requests) == len(statuses) + 1
    assert len({headers["spark-ext-delivery"] for headers, _ in endpoint.requests}) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 302])
def test_what_does_not_pass_is_not_repeated(status: int) -> None:
    """A redirect is not followed: a signed request goes where the configuration says."""
    with (
        serving([status], b"no such hook") as endpoint,
        pytest.raises(RuntimeError, match=f"answered {status}: no such"),
    ):
        sent(WebhookListener(url=endpoint.url))
    assert len(endpoint.requests) == 1


def test_it_gives_up_after_its_time() -> None:
    with serving([503] * 1000) as endpoint, pytest.raises(RuntimeError, match=r"127\.0\.0\.1 has answered 503"):
        sent(WebhookListener(url=endpoint.url, give_up_after="300 ms"))
    assert len(endpoint.requests) > 1


def test_neither_secret_nor_path_is_in_an_error() -> None:
    with serving() as endpoint:
        gone = endpoint.url
    listener = WebhookListener(url=f"{gone}T0123456789/secretpath", secret="hunter2-hunter2", give_up_after=0)
    with pytest.raises(RuntimeError) as refused:
        listener.changed(change(), CONTEXT)
    assert str(refused.value) == "127.0.0.1 cannot be reached: ConnectError"
    assert masking.mask("hooks/T0123456789/secretpath of hunter2-hunter2") == "*** of ***"
    with serving([400], b"bad key hunter2-hunter2") as endpoint, pytest.raises(RuntimeError, match="bad key \\*\\*\\*"):
        sent(WebhookListener(url=endpoint.url, secret="hunter2-hunter2"))


def test_http_is_for_this_machine_unless_it_is_insisted_on() -> None:
    for url in ("http://localhost:1/", "http://127.0.0.1/", "http://[::1]/x", "https://example.invalid/"):
        WebhookListener(url=url)
    with pytest.raises(ConfigurationError, match="use https://"):
        WebhookListener(url="http://10.0.0.1/")
    WebhookListener(url="http://10.0.0.1/", insecure=True)


BOMB = gzip.compress(bytes(50_000_000))


def bomb(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 400 No\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB)


@pytest.mark.parametrize(
    ("play", "said"),
    [
        (trickle(b"HTTP/1.1 400 No\r\nContent-Length: 1000000\r\n\r\n", b"x"), "cannot be reached: ReadTimeout"),
        (trickle(b"HTTP/1.1 400 No\r\nX-Long: ", b"x"), "cannot be reached: ReadTimeout"),
        (trickle(b"HTTP/1.1 400 No\r\n\r\n", b"x" * 65_536, 0), "answered 400: " + "x" * 200),
        (bomb, "answered 400: "),
    ],
    ids=["body", "headers", "large", "bomb"],
)
def test_an_answer_takes_neither_time_nor_memory(play: Play, said: str) -> None:
    with playing(play) as seen:
        listener = WebhookListener(url=seen.url, request_timeout="300 ms", give_up_after=0)
        tracemalloc.start()
        with pytest.raises(RuntimeError) as refused:
            listener.changed(change(), CONTEXT)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        listener.close()
    assert str(refused.value) == f"127.0.0.1 {'has ' * ('answered' in said)}{said}"
    assert peak < 10_000_000
