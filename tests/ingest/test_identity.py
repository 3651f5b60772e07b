"""The identity of an event is what stays the same when it is sent again."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.ingest.description import SCHEMES, InboxDescription
from spark_ext.ingest.identity import Answer, Identity, handshake, identified, of_event
from spark_ext.ingest.records import MOST_IDENTITY, SEPARATOR
from spark_ext.ingest.signatures import Rejected

NOW = 1_790_000_000.0
JSON = {"content-type": "application/json"}
STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8"}
BATCH = {"content-type": "application/cloudevents-batch+json"}
CLOUDEVENT = {"specversion": "1.0", "id": "e-1", "source": "/orders", "type": "t", "time": "2026-09-21T13:33:20Z"}


def inbox(scheme: str, pointer: str = "") -> InboxDescription:
    return InboxDescription("orders", "id", "job", scheme=scheme, pointer=pointer)


def found(scheme: str, headers: dict[str, str], body: Any = b"{}", pointer: str = "") -> Identity:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return identified(inbox(scheme, pointer), headers, content, NOW)


def refusal(status: int, scheme: str, headers: dict[str, str], body: Any = b"{}", pointer: str = "") -> str:
    with pytest.raises(Rejected) as problem:
        found(scheme, headers, body, pointer)
    assert problem.value.status == status
    return problem.value.reason


@pytest.mark.parametrize(
    ("scheme", "headers", "body", "expected"),
    [
        (
            "standard",
            {"webhook-id": "msg_1", "webhook-timestamp": "1789999999"},
            b"<a/>",
            Identity("standard", "msg_1"),
        ),
        (
            "standard",
            {"webhook-id": "msg_1"},
            {"type": "a", "timestamp": "2022-11-03T20:26:10.344522123Z"},
            Identity("standard", "msg_1", event_time=1667507170.344522),
        ),
        ("github", {"x-github-delivery": "72d3162e"}, b"{}", Identity("github", "72d3162e")),
        (
            "shopify",
            {
                "x-shopify-webhook-id": "w-1",
                "x-shopify-event-id": "e-1",
                "x-shopify-triggered-at": "2023-03-29T18:00:27.877041743Z",
            },
            b"{}",
            Identity("shopify", "w-1", event_time=1680112827.877041),
        ),
        ("stripe", {}, {"id": "evt_1", "created": 1492774577}, Identity("stripe", "evt_1", event_time=1492774577)),
        (
            "stripe",
            {},
            {"id": "evt_1", "created": "2024-09-26T17:46:22.134Z"},
            Identity("stripe", "evt_1", event_time=1727372782.134),
        ),
        ("slack", {}, {"event_id": "Ev1", "event_time": 1515449522}, Identity("slack", "Ev1", event_time=1515449522)),
        ("slack", {}, b"command=%2Fweather&text=94070", Identity()),
        ("idempotency-key", {"idempotency-key": "k"}, b"", Identity("idempotency-key", "k")),
        ("sequence", {"x-producer": "p", "x-sequence": "0"}, b"", Identity("sequence", producer="p")),
        (
            "sequence",
            {"x-producer": "p", "x-sequence": "4611686018427387903"},
            b"",
            Identity("sequence", producer="p", first=2**62 - 1),
        ),
        (
            "cloudevents",
            STRUCTURED,
            CLOUDEVENT,
            Identity("cloudevents", f"/orders{SEPARATOR}e-1", event_time=1789997600),
        ),
        (
            "cloudevents",
            {**JSON, "ce-source": "/orders", "ce-id": "e%20%E2%82%AC", "ce-time": "2026-09-21T13:33:20Z"},
            b"{}",
            Identity("cloudevents", f"/orders{SEPARATOR}e €", event_time=1789997600),
        ),
        ("cloudevents", BATCH, [CLOUDEVENT], Identity("cloudevents")),
        ("pointer", JSON, {"a/b": [{"~": 12345678901234567890}]}, Identity("pointer", "12345678901234567890")),
        ("pointer", {"content-type": "application/x-ndjson"}, b"{}", Identity("pointer")),
        ("pointer", JSON, b" [{}]", Identity("pointer")),
    ],
)
def test_each_scheme_has_it_in_its_place(scheme: str, headers: dict[str, str], body: Any, expected: Identity) -> None:
    assert found(scheme, headers, body, "/a~1b/0/~0") == expected


def test_any_sender_is_known_by_what_it_gives() -> None:
    assert found("", JSON) == Identity()
    assert found("", {"webhook-id": "a", "idempotency-key": "b"}).identity == "a"
    assert found("", {"x-github-delivery": "a"}) == Identity("github", "a")
    assert found("", {"x-shopify-webhook-id": "a"}) == Identity("shopify", "a")
    assert found("", {"idempotency-key": "b", "x-producer": "p"}) == Identity("idempotency-key", "b")
    assert found("", {"x-producer": "p", "x-sequence": "3"}) == Identity("sequence", producer="p", first=3)
    assert found("", {"ce-id": "e", "ce-source": "s", "webhook-id": "a"}).scheme == "cloudevents"
    assert found("", STRUCTURED, CLOUDEVENT).scheme == found("", BATCH, [CLOUDEVENT]).scheme == "cloudevents"
    # What is in a body is looked at only if the inbox says so.
    assert found("", JSON, {"id": "evt_1", "event_id": "Ev1"}) == Identity()


@pytest.mark.parametrize(
    ("status", "scheme", "headers", "body", "reason"),
    [
        (400, "standard", {}, b"{}", "the header 'webhook-id' is missing or empty"),
        (400, "github", {}, b"{}", "the header 'x-github-delivery' is missing or empty"),
        (400, "shopify", {"x-shopify-event-id": "e"}, b"{}", "the header 'x-shopify-webhook-id' is missing or empty"),
        (400, "idempotency-key", {"idempotency-key": ""}, b"{}", "the header 'idempotency-key' is missing or empty"),
        (400, "sequence", {"x-sequence": "1"}, b"{}", "the header 'x-producer' is missing or empty"),
        (400, "sequence", {"x-producer": "p"}, b"{}", "'x-sequence' is not a number below"),
        (400, "sequence", {"x-producer": "p", "x-sequence": "-1"}, b"{}", "'x-sequence' is not a number below"),
        (400, "sequence", {"x-producer": "p", "x-sequence": "01"}, b"{}", "'x-sequence' is not a number below"),
        (400, "sequence", {"x-producer": "p", "x-sequence": str(1 << 62)}, b"{}", "'x-sequence' is not a number below"),
        (422, "stripe", {}, b"[]", "the member 'id' of the body is missing or empty"),
        (422, "stripe", {}, b'{"id": 5.', "the member 'id' of the body is missing or empty"),
        (422, "stripe", {}, b'{"id": {}}', "the member 'id' of the body is missing or empty"),
        (422, "slack", {}, b'{"event_id": null}', "the member 'event_id' of the body is missing or empty"),
        (422, "cloudevents", STRUCTURED, b'{"id": "e"}', "the attribute 'source' is missing or empty"),
        (422, "cloudevents", JSON, b'{"id": "e", "source": "s"}', "the attribute 'source' is missing or empty"),
        (422, "pointer", JSON, b'{"a": true}', "the body has no text or number at '/a'"),
        (422, "pointer", JSON, b'{"a": null}', "the body has no text or number at '/a'"),
        (422, "pointer", JSON, b'{"a": {"b": 1}}', "the body has no text or number at '/a'"),
        (422, "pointer", JSON, b'{"a": ""}', "what the body has at '/a' is missing or empty"),
        (400, "pointer", JSON, b'{"a": "1"', "the body is not JSON"),
        (400, "pointer", JSON, b'{"a":' + b"[" * 200_000, "the body is not JSON"),
        (400, "pointer", JSON, b'{"a": "\xff"}', "the body is not JSON"),
    ],
)
def test_what_is_missing_is_named(status: int, scheme: str, headers: dict[str, str], body: bytes, reason: str) -> None:
    assert reason in refusal(status, scheme, headers, body, "/a")


def test_an_identity_that_could_not_be_stored_is_refused() -> None:
    most = "x" * MOST_IDENTITY
    assert found("idempotency-key", {"idempotency-key": most}).identity == most
    assert "more than 1024 bytes" in refusal(400, "idempotency-key", {"idempotency-key": most + "x"})
    assert "more than 1024 bytes" in refusal(422, "stripe", {}, {"id": "é" * 513})
    assert "more than 1024 bytes" in refusal(422, "cloudevents", STRUCTURED, {"id": most, "source": "s"})
    # Two that are no text would become the same one.
    assert "half of a character" in refusal(422, "cloudevents", {"ce-id": "%FE", "ce-source": "s"})
    # A separator would make the identity of one event that of another in a batch; half a character has no UTF-8.
    assert "control character" in refusal(422, "stripe", {}, {"id": f"a{SEPARATOR}0"})
    assert "half of a character" in refusal(422, "stripe", {}, b'{"id": "\\ud800"}')
    assert found("stripe", {}, b'{"id": "\\ud83d\\ude00"}').identity == "😀"


def test_the_time_of_an_event_is_none_if_it_is_unclear_or_in_the_future() -> None:
    for text in (
        b'"soon"',
        b"null",
        b"true",
        b"1790000001",
        b"1790000000000",
        b"1e9",
        b'"2022-13-03T20:26:10Z"',
        b"{}",
    ):
        assert found("stripe", {}, b'{"id": "a", "created": %s}' % text).event_time is None, text
    assert found("stripe", {}, {"id": "a", "created": "2022-11-03T20:26:10"}).event_time == 1667507170
    assert found("stripe", {}, {"id": "a", "created": "2022-11-03T20:26:10.5Z"}).event_time == 1667507170.5
    assert found("stripe", {}, {"id": "a", "created": "2022-11-03t22:26:10+02:00"}).event_time == 1667507170


def test_events_of_a_batch_say_which_one_has_no_identity() -> None:
    assert of_event("cloudevents", "", json.dumps(CLOUDEVENT).encode()).event_time == 1789997600
    assert of_event("pointer", "/id", b'{"id": 1.50}').identity == "1.50"
    for scheme, event in (("cloudevents", b'{"id": "e"}'), ("cloudevents", b"[]"), ("pointer", b'{"a": 1}')):
        with pytest.raises(Rejected, match="of event 7") as problem:
            of_event(scheme, "/id", event, " of event 7")
        assert problem.value.status == 422


@given(
    st.sampled_from(sorted(SCHEMES)),
    st.text(max_size=30),
    st.binary(max_size=60),
    st.sampled_from([JSON, STRUCTURED, BATCH]),
)
def test_whatever_is_sent_has_an_identity_or_is_rejected(
    scheme: str, text: str, body: bytes, kind: dict[str, str]
) -> None:
    names = ("webhook-id", "x-github-delivery", "ce-id", "ce-source", "x-producer", "x-sequence", "idempotency-key")
    try:
        identity = identified(inbox(scheme, "/" + text), {**kind, **dict.fromkeys(names, text)}, body, NOW)
    except Rejected as problem:
        assert problem.status in (400, 422)
    else:
        identity.identity.encode()


def test_slack_gets_its_challenge_back() -> None:
    asked = json.dumps({"token": "t", "challenge": "3eZbrw1aB10FEMAGAZd4", "type": "url_verification"}).encode()
    answer = handshake(inbox("slack"), "POST", JSON, asked)
    assert answer == Answer(200, {"content-type": "text/plain"}, b"3eZbrw1aB10FEMAGAZd4")
    assert handshake(inbox("slack"), "POST", JSON, b'{"event_id": "Ev1", "text": "url_verification"}') is None
    assert handshake(inbox("slack"), "GET", JSON, asked) is handshake(inbox("github"), "POST", JSON, asked) is None
    with pytest.raises(Rejected, match="'challenge'"):
        handshake(inbox("slack"), "POST", JSON, b'{"type": "url_verification"}')


def test_github_may_ping() -> None:
    answer = handshake(inbox("github"), "POST", {"x-github-event": "ping"}, b'{"zen": "Half measures"}')
    assert answer is not None and answer.status == 200
    assert handshake(inbox("github"), "POST", {"x-github-event": "push"}, b"{}") is None
    assert handshake(inbox(""), "POST", {"x-github-event": "ping"}, b"{}") is None


def test_who_asks_may_send_cloudevents() -> None:
    asked = {"webhook-request-origin": "eventemitter.example.com", "webhook-request-rate": "120"}
    answer = handshake(inbox("cloudevents"), "OPTIONS", asked, b"")
    assert answer is not None and answer.status == 200
    assert answer.headers["webhook-allowed-origin"] == "eventemitter.example.com"
    assert answer.headers["webhook-allowed-rate"] == "120" and "POST" in answer.headers["allow"]
    assert handshake(inbox("stripe"), "OPTIONS", asked, b"") is handshake(inbox(""), "OPTIONS", {}, b"") is None
    for wrong in ({"webhook-request-origin": "a\r\nb"}, {**asked, "webhook-request-rate": "many"}):
        with pytest.raises(Rejected, match="not a name"):
            handshake(inbox(""), "OPTIONS", wrong, b"")
