"""Protobuf into Arrow: each value is what was set, or its message is refused."""

import datetime
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from spark_ext.clients.pinned_schemas import Pinned
from spark_ext.clients.proto_compiler import compiled, descriptor
from spark_ext.clients.schema_registry import Registry, RegistryOptions
from spark_ext.errors import ConfigurationError
from spark_ext.schemas.arrow import arrow_type
from spark_ext.sources.registered import Protobuf, Undecodable

UTC = datetime.timezone.utc
FRAME = b"\0\0\0\0\1\0"


@cache
def made(schema: str) -> tuple[Protobuf, Any]:
    registry = Registry(RegistryOptions(schema_registry_url="http://127.0.0.1:9"), 1.0, "test")
    from confluent_kafka.schema_registry import Schema

    text, message = compiled(registry, Schema(schema, "PROTOBUF"), None)
    found = descriptor(text, message)
    assert found is not None
    return Protobuf(Pinned("protobuf", "s", 1, 1, text, message), "test"), GetMessageClass(found)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
SCALARS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), INTS),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), LONGS),
    **dict.fromkeys(("uint32", "fixed32"), st.integers(0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), st.integers(0, 2**64 - 1)),
    "bool": st.booleans(),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": TEXTS,
    "bytes": st.binary(max_size=4),
}
SOME = ("int32", "uint64", "bool", "double", "string", "bytes")
EVERYTHING = "\n".join(
    [
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";',
        "message M {",
        *(f"repeated {kind} {kind}_list = {number};" for number, kind in enumerate(SCALARS, 1)),
        *(f"{kind} {kind}_plain = {number};" for number, kind in enumerate(SOME, 50)),
        *(f"optional {kind} {kind}_set = {number};" for number, kind in enumerate(SOME, 60)),
        "map<string, int64> by_text = 200; map<sint32, string> by_number = 201; google.protobuf.Timestamp at = 202;",
        "google.protobuf.UInt64Value wrapped = 203; Inner inner = 204; repeated Inner inners = 205;",
        "message Inner { optional string what = 1; } }",
    ]
)
INNER = st.fixed_dictionaries({"what": st.none() | TEXTS})
VALUES = st.fixed_dictionaries(
    {
        **{f"{kind}_plain": SCALARS[kind] for kind in SOME},
        **{f"{kind}_set": st.none() | SCALARS[kind] for kind in SOME},
        **{f"{kind}_list": st.lists(values, max_size=2) for kind, values in SCALARS.items()},
        "by_text": st.dictionaries(TEXTS, LONGS, max_size=2), "by_number": st.dictionaries(INTS, TEXTS, max_size=2),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)), "wrapped": st.none() | st.integers(0, 2**64 - 1),
        "inner": st.none() | INNER, "inners": st.lists(INNER, max_size=2),
    }
)  # fmt: skip


def _column(decoder: Protobuf, content: bytes) -> Any:
    return pa.array([decoder.value(FRAME + content)], arrow_type(decoder.kind))[0].as_py()


@given(VALUES)
def test_each_value_is_what_was_set(values: dict[str, Any]) -> None:
    decoder, kind = made(EVERYTHING)
    message = kind(**{name: value for name, value in values.items() if name != "wrapped"})
    if values["wrapped"] is not None:
        message.wrapped.value = values["wrapped"]
    found = _column(decoder, message.SerializeToString())
    for name in ("by_text", "by_number"):
        found[name] = dict(found[name])
    assert found == values


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_refused(content: bytes) -> None:
    try:
        _column(made(EVERYTHING)[0], content)
    except (Undecodable, pa.ArrowInvalid):
        return


STRICT = """
syntax = "proto2";
message M {
  required int32 id = 1; optional E state = 2; repeated E states = 3; optional string note = 4;
  optional Inner inner = 5; map<string, int32> sizes = 6; repeated string notes = 7;
  message Inner { required int32 id = 1; }
  enum E { NEW = 0; SENT = 1; }
}
"""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "required fields are missing: id"),
        (b"\x08\1\x2a\0", "required fields are missing: inner.id"),
        (b"\x0a\1a\x08\1", "'id' is not of its type"),
        (b"\x08\1\x10\5", "'state' is not of its type, or no symbol"),
        (b"\x08\1\x18\1\x18\5", "'states' is not of its type, or no symbol"),
        (b"\x08\1\x22\1\xff", "can't decode byte 0xff"),
        (b"\x08\1\x3a\1\xff", "can't decode byte 0xff"),
        (b"\x08\1\x32\5\x0a\1\xff\x10\1", "can't decode byte 0xff"),
    ],
)
def test_what_a_message_of_syntax_2_cannot_be(content: bytes, words: str) -> None:
    """The library takes a field that it cannot read for one that is not set, and gives bytes for what is no text."""
    decoder, _ = made(STRICT)
    assert _column(decoder, b"\x08\7\x10\1\x98\x75\1")["id"] == 7, "a field that the version does not have"
    with pytest.raises(Undecodable, match=f"it is not a M: .*{words}"):
        decoder.value(FRAME + content)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("message M { int32 id = 1; int32 ID = 2; }", "the schema is a message with names that differ in case only: M"),
        ("message M { N n = 1; } message N { string a = 1; string A = 2; }", "'n' is a message with names that differ"),
        (
            " ".join(
                f"message M{level} {{ {' '.join(f'M{level + 1} f{n} = {n};' for n in range(1, 11))} }}"
                for level in range(9)
            )
            + "message M9 { int32 x = 1; }",
            "it has more than 10000 parts",
        ),
        (
            " ".join(f"message M{level} {{ M{level + 1} f = 1; }}" for level in range(300))
            + "message M300 { int32 x = 1; }",
            "has more than 100 types within one another",
        ),
    ],
)
def test_messages_without_a_form_are_refused(schema: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        made(f'syntax = "proto3"; {schema}')


def test_large_numbers_and_enums_of_syntax_3_are_kept() -> None:
    decoder, kind = made('syntax = "proto3"; message M { E e = 1; uint64 n = 2; enum E { NEW = 0; } }')
    assert _column(decoder, kind(e=5, n=2**64 - 1).SerializeToString()) == {"e": "5", "n": Decimal(2**64 - 1)}


TIMED = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp at = 1; }'


@pytest.mark.parametrize("nanos", [-1, 10**9, 2**31 - 1])
def test_a_time_with_nanoseconds_beyond_a_second_is_refused(nanos: int) -> None:
    decoder, kind = made(TIMED)
    message = kind()
    message.at.seconds = 5
    message.at.nanos = 999_999_999
    assert _column(decoder, message.SerializeToString())["at"] == datetime.datetime(1970, 1, 1, 0, 0, 5, 999_999, UTC)
    message.at.nanos = nanos
    with pytest.raises(Undecodable, match=f"{nanos} nanoseconds"):
        decoder.value(FRAME + message.SerializeToString())
