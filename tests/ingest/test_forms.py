"""From a request to its events: nothing is lost, nothing is changed, and what cannot be divided is not accepted."""

import contextlib
import decimal
import gzip
import json
import struct
import time
import tracemalloc
import zlib
from datetime import datetime, timezone
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_ext.ingest.description import DAY, InboxDescription
from spark_ext.ingest.forms import check, decompress, divided, explode, request_of, typed
from spark_ext.ingest.records import SEPARATOR, Form, Request, body_hash, events_schema, identity_hash
from spark_ext.ingest.signatures import Rejected
from spark_ext.schemas.ddl import columns

AT = 1_790_000_000_000_000
TYPES = {
    Form.SINGLE: "text/plain",
    Form.NDJSON: "application/x-ndjson",
    Form.ARRAY: "application/json",
    Form.CLOUDEVENTS: "application/cloudevents-batch+json",
    Form.ARROW: "application/vnd.apache.arrow.stream",
}
INBOX = InboxDescription("orders", "id", "job")


def sent(body: bytes, form: Form = Form.SINGLE, inbox: InboxDescription = INBOX, **headers: str) -> Request:
    given_ones = {"content-type": TYPES[form], **{name.replace("_", "-"): value for name, value in headers.items()}}
    return request_of(inbox, given_ones, body, "", "", AT)


def refusal(status: int, body: bytes, form: Form, inbox: InboxDescription = INBOX, **headers: str) -> str:
    with pytest.raises(Rejected) as problem:
        sent(body, form, inbox, **headers)
    assert problem.value.status == status
    return problem.value.reason


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def bodies(*requests: Request) -> list[bytes]:
    batch = explode(requests, "inbox", 0)
    batch.validate(full=True)
    assert batch.num_rows == sum(one.events for one in requests)
    return [bytes(one) for one in batch.column("body").to_pylist()]


def test_a_request_is_kept_with_its_identity_and_without_secrets() -> None:
    headers = {
        "content-type": "text/plain",
        "idempotency-key": "k",
        "x-author": "a",
        "authorization": "Bearer t",
        "cookie": "c",
        "proxy-authorization": "p",
        "x-hub-signature-256": "s",
        "x-shopify-hmac-sha256": "h",
        "x-gitlab-token": "t",
        "x-client-secret": "s",
        "x-api-key": "k",
    }
    query = "a=1&token=t&b=&Api%5FKey=k&flag&%74oken=t"
    found = request_of(INBOX, headers, b"{}", "a/b", query, AT)
    assert found == Request(
        at=AT,
        body=b"{}",
        scheme="idempotency-key",
        identity="k",
        content_type="text/plain",
        path="a/b",
        query="a=1&token=***&b=&Api%5FKey=***&flag&%74oken=***",
        headers=(("content-type", "text/plain"), ("idempotency-key", "k"), ("x-author", "a")),
    )
    assert Request.decode(found.encode()) == found


@pytest.mark.parametrize(
    ("status", "form", "body", "reason"),
    [
        (400, Form.SINGLE, b"", "the body is empty"),
        (422, Form.NDJSON, b"\n \r\n\t", "the body contains no event"),
        (422, Form.ARRAY, b" [ ] ", "the body contains no event"),
        (422, Form.CLOUDEVENTS, b"[]", "the body contains no event"),
        (400, Form.CLOUDEVENTS, b"{}", "not a JSON array"),
        (400, Form.ARRAY, b"[1 2]", "a bracket or comma is missing behind 1 elements"),
        (400, Form.ARRAY, b"[1,]", "not a JSON array"),
        (400, Form.ARRAY, b"[,1]", "not a JSON array"),
        (400, Form.ARRAY, b"[1", "not a JSON array"),
        (400, Form.ARRAY, b"[1]]", "not a JSON array"),
        (400, Form.ARRAY, b"[1] x", "not a JSON array"),
        (400, Form.ARRAY, b"[01]", "not a JSON array"),
        (400, Form.ARRAY, b"[NaN]", "NaN is not a number"),
        (400, Form.ARRAY, b'["a\nb"]', "not a JSON array"),
        (400, Form.ARRAY, b'["\xff"]', "not a JSON array"),
        (400, Form.ARRAY, b"[" * 300_000, "not a JSON array"),
        (422, Form.CLOUDEVENTS, b'[{"id": "1", "source": "s"}, {"id": "2"}]', "'source' of event 2 is missing"),
        (400, Form.ARROW, b"no Arrow", "not a readable Arrow IPC stream"),
    ],
)
def test_a_body_that_cannot_be_divided_is_refused_by_name(status: int, form: Form, body: bytes, reason: str) -> None:
    assert reason in refusal(status, body, form)


def test_text_is_in_utf8() -> None:
    for kind in ("application/x-ndjson; charset=latin-1", 'application/json;charset="UTF-16"'):
        assert "send them in UTF-8" in refusal(415, b"[1]", Form.SINGLE, content_type=kind)
    assert sent(b"[1]", content_type='application/json; charset="UTF-8"').events == 1
    assert sent(b"\xff", content_type="text/plain; charset=latin-1").body == b"\xff"


@given(st.text(), st.binary(min_size=1, max_size=30), st.sampled_from(sorted(TYPES.values())))
def test_what_is_accepted_becomes_events(text: str, body: bytes, kind: str) -> None:
    with contextlib.suppress(Rejected):
        found = request_of(
            INBOX, {"content-type": kind, "x-any": text}, body, f"{text}\ud800", f"a={text}&{text}=b", AT
        )
        bodies(Request.decode(found.encode()))


def test_an_event_before_the_window_is_old() -> None:
    stripe = InboxDescription("orders", "id", "job", scheme="stripe", dedup_window=3 * DAY)
    for days, old in ((2, False), (4, True)):
        body = json.dumps({"id": "evt_1", "created": AT // 1_000_000 - days * 86_400}).encode()
        assert sent(body, inbox=stripe).old is old
    batch = [{"id": str(day), "source": "s", "time": f"2026-09-{day}T00:00:00Z"} for day in (21, 10, 20)]
    for events in (batch, batch[::2]):
        assert sent(json.dumps(events).encode(), Form.CLOUDEVENTS).old is (events is batch)


ODD = b'{"a": 1e400, "b": 12345678901234567890123, "c": 1.10, "a": "\\u00e9\xc3\xa9\\ud800"}'


def test_events_of_a_batch_are_as_they_were_sent() -> None:
    assert bodies(sent(b" \n[" + ODD + b" ,\t1 , []\n,null]\r\n", Form.ARRAY)) == [ODD, b"1", b"[]", b"null"]
    assert bodies(sent(ODD + b"\r\n\r\n  \n {\r} \n\xff", Form.NDJSON)) == [ODD, b" {\r} ", b"\xff"]
    assert bodies(sent(ODD)) == [ODD]


blanks = st.text(" \t\r\n", max_size=2)
values = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.integers() | st.sampled_from([1e300, -0.0, 1.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(blanks, values, blanks, st.booleans()), min_size=1, max_size=5))
def test_any_array_is_divided_byte_for_byte(elements: list[tuple[str, Any, str, bool]]) -> None:
    texts = [json.dumps(value, ensure_ascii=plain).encode() for _, value, _, plain in elements]
    body = b",".join(
        before.encode() + text + after.encode() for text, (before, _, after, _) in zip(texts, elements, strict=True)
    )
    assert divided(Form.ARRAY, b"[" + body + b"]", 0) == texts
    for cut in range(len(body)):
        with pytest.raises(Rejected):
            divided(Form.ARRAY, b"[" + body[:cut], 0)


@given(st.lists(st.tuples(st.binary(max_size=30), st.sampled_from([Form.SINGLE, Form.NDJSON])), max_size=6))
def test_lines_are_the_same_in_one_step_and_one_by_one(parts: list[tuple[bytes, Form]]) -> None:
    requests = [
        Request(AT, body, form, events=len(divided(form, body, 0)))
        for body, form in (*parts, (b"\r\n".join(body for body, _ in parts), Form.NDJSON))
    ]
    assert bodies(*requests) == [event for one in requests for event in divided(one.form, one.body, 0)]


def plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one for one in schema]
    )


def test_each_event_has_a_number_and_what_its_request_had() -> None:
    batch = explode(
        [
            Request(AT, b"1\n2", Form.NDJSON, "standard", "m", headers=(("a", "b"), ("c", "d")), path="p", query="q"),
            Request(AT + 1, b"3", scheme="sequence", producer="p", first=7, old=True, content_type="t"),
            Request(AT + 2, b"[4,5]", Form.ARRAY, "sequence", producer="p", first=8),
            Request(AT + 3, b'[{"id": 6}]', Form.ARRAY, "pointer", pointer="/id"),
        ],
        "inbox",
        100,
    )
    assert plain(batch.schema) == events_schema()
    assert len(batch.column("headers").dictionary) == 4, "once for all events of a request"
    rows = batch.to_pylist()
    assert [row["sequence"] for row in rows] == [100, 101, 102, 103, 104, 105]
    ids = [f"m{SEPARATOR}0", f"m{SEPARATOR}1", None, None, None, "6"]
    assert [row["event_id"] for row in rows] == ids
    schemes = ["standard"] * 5 + ["pointer"]
    assert [row["identity"] for row in rows] == [
        id and identity_hash("inbox", scheme, id) for scheme, id in zip(schemes, ids, strict=True)
    ]
    assert [row["body_hash"] for row in rows] == [
        body_hash(b"1"), body_hash(b"2"), None, None, None, body_hash(b'{"id": 6}'),
    ]  # fmt: skip
    assert [row["producer_sequence"] for row in rows] == [None, None, 7, 8, 9, None]
    assert [row["producer"] for row in rows] == [None, None, "p", "p", "p", None]
    assert [row["old"] for row in rows] == [False, False, True, False, False, False]
    assert rows[1]["headers"] == [("a", "b"), ("c", "d")] and rows[1]["path"] == "p" and rows[1]["query"] == "q"
    assert rows[2]["received_at"] == datetime(2026, 9, 21, 14, 13, 20, 1, timezone.utc)
    assert explode([], "inbox", 0).schema == events_schema()


def test_events_with_identities_of_their_own_have_the_same_alone_and_in_a_batch() -> None:
    event = b'{"specversion": "1.0", "id": "1", "source": "s", "type": "t"}'
    alone = sent(event, content_type="application/cloudevents+json")
    together = sent(b"[" + event + b"]", Form.CLOUDEVENTS)
    header = sent(b"{}", content_type="text/plain", ce_id="1", ce_source="s")
    found = explode([alone, together, header], "inbox", 0)
    assert len(set(found.column("identity").to_pylist())) == len(set(found.column("event_id").to_pylist())) == 1
    pointed = InboxDescription("orders", "id", "job", scheme="pointer", pointer="/id")
    assert "event 2" in refusal(422, b'{"id": 1}\n{}', Form.NDJSON, pointed)
    lines, array = sent(b'{"id": 1}\n', Form.NDJSON, pointed), sent(b'[{"id": "1"}]', Form.ARRAY, pointed)
    single = sent(b'{"id": 1}', Form.SINGLE, pointed)
    assert explode([lines, array, single], "inbox", 0).column("event_id").to_pylist() == ["1", "1", "1"]


ARROW = pa.table(
    {
        "i": pa.array([9223372036854775807, None], pa.int64()),
        "d": pa.array([decimal.Decimal("12345678901234567890.10"), None], pa.decimal128(38, 2)),
        "t": pa.array([1_790_000_000_123_456, None], pa.timestamp("us", "UTC")),
        "f": pa.array([0.1, -0.0]),
        "s": pa.array(['"é"\n', ""]),
        "l": pa.array([[{"x": True}], []], pa.list_(pa.struct([("x", pa.bool_())]))),
    }
)
ENDS = struct.pack("<3i", 0, 5, 5)  # of its texts
DECLARED = columns("i long, d decimal(38,2), t timestamp, f double, s string, l array<struct<x: boolean>>")


def test_rows_in_arrow_become_events_with_all_of_their_digits() -> None:
    request = sent(stream(ARROW), Form.ARROW)
    assert request.events == 2
    batch = explode([request], "inbox", 0)
    found = typed(batch, DECLARED, lambda row, reason: pytest.fail(reason))
    assert found.to_pylist() == ARROW.to_pylist()
    assert batch.column("body")[1].as_py() == b'{"i":null,"d":null,"t":null,"f":-0.0,"s":"","l":[]}'


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (415, stream(ARROW, compression="zstd"), "compress the body as a whole"),
        (422, stream(pa.table({"a": pa.array(["x"]).dictionary_encode()})), "column 'a' has the type dictionary"),
        (422, stream(pa.table({"a": pa.nulls(1 << 10)})), "column 'a' has the type null"),
        (422, stream(pa.table({"a": pa.array([b"x"])})), "column 'a' has the type binary"),
        (422, stream(pa.table({"a": pa.array([{}], pa.struct([]))})), "column 'a' has the type struct<>"),
        (422, stream(pa.table([[1], [2]], names=["a", "a"])), "two of one name"),
        (422, stream(pa.table({"a": pa.array([], pa.int64())})), "no event"),
        (413, stream(pa.table({"name" * 100: pa.array([True] * 3_000)})), "more than 1048576 bytes as JSON"),
        (400, stream(pa.table({"a": [float("nan")]})), "not a readable Arrow IPC stream"),
        (400, stream(ARROW)[:-100], "not a readable Arrow IPC stream"),
        (400, stream(ARROW).replace('"é"'.encode(), b'"\xff\xff"'), "not a readable Arrow IPC stream"),
        (400, stream(ARROW).replace(ENDS, struct.pack("<3i", 0, 1 << 24, 5)), "not a readable Arrow IPC stream"),
    ],
    ids=["compressed", "dictionary", "null", "binary", "empty", "twice", "none", "large", "nan", "cut", "text", "ends"],
)
def test_arrow_that_has_no_form_in_json_or_would_grow_is_refused(status: int, body: bytes, reason: str) -> None:
    assert reason in refusal(status, body, Form.ARROW)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_damaged_arrow_is_refused_or_read(at: int, noise: bytes) -> None:
    body = stream(ARROW)
    at %= len(body)
    try:
        divided(Form.ARROW, body[:at] + noise + body[at + len(noise) :], 1 << 20)
    except Rejected as problem:
        assert problem.status in (400, 413, 415, 422)


def test_bodies_that_do_not_fit_are_refused_if_the_inbox_says_so() -> None:
    schema = columns("id long not null, at timestamp")
    inbox = InboxDescription("orders", "id", "job", columns=schema.jsonValue(), on_bad_row="reject")
    assert sent(b'{"id": 1}', Form.SINGLE, inbox).events == 1
    assert "not nullable" in refusal(422, b'{"at": "2026-01-01"}', Form.SINGLE, inbox)
    assert refusal(422, b'{"id": 1}\n{"id": 2}\n{"id": "3"}', Form.NDJSON, inbox).startswith(
        "event 3 of 3: column 'id'"
    )
    assert "event 1 of 2" in refusal(422, b'[7, {"id": "3"}]', Form.ARRAY, inbox)
    kept = InboxDescription("orders", "id", "job", columns=schema.jsonValue())
    assert sent(b"anything", Form.SINGLE, kept).body == b"anything"
    assert check([b'{"id": 1}'], Form.SINGLE, schema.json()) is None


def zstd(content: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(content))


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("X-GZIP ", gzip.compress), ("zstd", zstd)])
def test_a_body_is_decompressed_up_to_a_limit(encoding: str, pack: Any) -> None:
    content = bytes(range(256)) * 400
    packed = pack(content)
    assert decompress(packed, encoding, len(content)) == content
    assert decompress(packed + packed, encoding, 2 * len(content)) == content + content
    assert decompress(pack(b""), encoding, 10) == b""
    for most in (len(content) - 1, 10, 0):
        with pytest.raises(Rejected) as problem:
            decompress(packed, encoding, most)
        assert problem.value.status == 413
    for broken in (packed[:-1], packed[:20], packed + b"junk", b"junk"):
        with pytest.raises(Rejected) as problem:
            decompress(broken, encoding, len(content))
        assert problem.value.status == 400


def test_other_encodings_are_refused_by_name() -> None:
    assert decompress(b"abc", "", 3) == decompress(b"abc", "identity", 3) == b"abc"
    with pytest.raises(Rejected, match="more than 2 bytes"):
        decompress(b"abc", "", 2)
    for encoding, body in (("deflate", zlib.compress(b"a")), ("br", b"a"), ("gzip, gzip", gzip.compress(b"a"))):
        with pytest.raises(Rejected, match=f"'{encoding}' is not supported; gzip and zstd are") as problem:
            decompress(body, encoding, 100)
        assert problem.value.status == 415


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstd)])
def test_a_bomb_does_not_go_off(encoding: str, pack: Any) -> None:
    bomb = pack(bytes(1 << 26))
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(Rejected, match="more than 1048576 bytes"):
            decompress(bomb, encoding, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 8 << 20


def test_empty_members_take_no_longer_than_their_number() -> None:
    started = time.process_time()
    assert decompress(gzip.compress(b"") * 20_000, "gzip", 1 << 20) == b""
    assert time.process_time() - started < 5
