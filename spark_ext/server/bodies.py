"""The body of a request: read within limits, parsed strictly, and described for the API."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from spark_ext.control.requests import Request
from spark_ext.model.control import Scope
from spark_ext.model.control_kinds import Kind, Where, kinds
from spark_ext.options import UID
from spark_ext.server.limits import Limits
from spark_ext.server.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest

DEPTH: Final = 64  # deepest nesting of a body
DRAINED: Final = 16  # how much of an oversized body is read and discarded, as a multiple of the limit

_UNFIT: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""What Delta cannot store: half of a surrogate pair; and what nobody can read: control characters."""

_MEMBERS: Final = frozenset({"kind", "target", "value", "delivery", "expires_at"})


async def read_request(http: HttpRequest, limits: Limits, requested_by: str, origin: str) -> Request:
    """The control event that an HTTP request asks for."""
    kind = http.headers.get("content-type", "")
    media, _, parameters = kind.partition(";")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if media.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Problem(
            415, "media_type", "the body is not application/json in UTF-8", "send Content-Type: application/json"
        )
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "media_type", "the body is compressed", "send it uncompressed")
    raw = parse(await _content(http, limits))
    return _request(raw, _key(http.headers.getlist("idempotency-key")), requested_by, origin)


async def _content(http: HttpRequest, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size = 0

    async def receive() -> None:
        nonlocal size
        async for part in http.stream():
            size += len(part)
            if size <= limits.body_bytes:
                parts.append(part)
            # A client that is still sending would not see the answer.
            elif size > limits.body_bytes * DRAINED:
                return

    try:
        await asyncio.wait_for(receive(), limits.body_seconds)
    except asyncio.TimeoutError:
        raise Problem(400, "malformed", "timed out reading the body", "send it at once") from None
    if size > limits.body_bytes:
        raise _too_large(limits)
    return b"".join(parts)


def _too_large(limits: Limits) -> Problem:
    return Problem(
        413,
        "too_large",
        f"the body has more than {limits.body_bytes} bytes",
        "keep large values in a file or table, and send its name",
        headers={"Connection": "close"},
    )


def parse(content: bytes) -> Any:
    """Parse JSON as RFC 8259 has it: no NaN, no repeated member, not too deep."""
    try:
        text = content.decode("utf-8")
        found = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_members)
        _check_depth(found)
        text.encode("utf-8")
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise _malformed("it is not UTF-8") from None
    except ValueError as problem:
        raise _malformed(str(problem)[:200]) from None
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a member twice")
    return found


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEPTH} levels")


def _malformed(what: str) -> Problem:
    return Problem(400, "malformed", f"invalid JSON body: {what}", "correct it; see /openapi.json")


def _request(raw: Any, key: str | None, requested_by: str, origin: str) -> Request:
    if not isinstance(raw, dict):
        raise _malformed("it is not an object")
    if unknown := sorted(raw.keys() - _MEMBERS):
        raise _malformed(f"it has unknown members: {', '.join(unknown)[:100]}")
    if "kind" not in raw:
        raise _malformed("the member kind is missing")
    for name in ("kind", "target", "delivery"):
        _check_text(name, raw.get(name, ""))
    expires = raw.get("expires_at")
    return Request(
        kind=raw["kind"],
        target=raw.get("target", "job"),
        value=raw.get("value"),
        delivery=raw.get("delivery", "immediate"),
        idempotency_key=key,
        expires_at=None if expires is None else _time(expires),
        requested_by=requested_by,
        origin=origin,
    )


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > 1_000 or _UNFIT.search(value):
        raise _malformed(f"the member {name} is not text of at most 1000 characters, without control characters")


def _time(value: Any) -> datetime:
    try:
        found = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else None
        if found is not None and found.tzinfo is not None:
            found.timestamp()
            return found
    except (ValueError, OverflowError):
        pass
    raise _malformed("expires_at is not a time with a zone, such as 2030-01-01T12:00:00Z")


def _key(given: list[str]) -> str | None:
    """The idempotency key, plain or in quotes."""
    if not given:
        return None
    key = given[0].strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(given) > 1 or not 0 < len(key) <= 200 or not key.isascii() or not key.isprintable():
        raise Problem(400, "malformed", "invalid Idempotency-Key header", "use 1 to 200 printable ASCII characters")
    return key


# -- the description --------------------------------------------------------------------------------------------------

_UID: Final = UID.pattern
_FORMS: Final[Mapping[Scope, str]] = {
    Scope.JOB: "job",
    Scope.QUERY: f"query:{_UID}",
    Scope.SOURCE: f"source:{_UID}",
    Scope.CHANNEL: f"source:{_UID}/.+",
    Scope.SINK: f"sink:{_UID}",
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


def body_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON Schema of a body, a union of the kinds, and the schemas it refers to."""
    models = [_model(kind) for kind in kinds().values() if kind.public]
    union: Any = Annotated[reduce(or_, models), Field(discriminator="kind")]
    schema = TypeAdapter(union).json_schema(ref_template="#/components/schemas/{model}")
    return schema, schema.pop("$defs")


def _model(kind: Kind) -> type[BaseModel]:
    forms = [_FORMS[scope] for scope in Scope if scope in kind.scopes]
    target: Any = Annotated[
        str, Field(pattern=f"^({'|'.join(forms)})$", max_length=1_000, description="Target of the event.")
    ]
    # pydantic 2.10 does not take None itself for a type.
    value: Any = type(None) if kind.value_type is None else kind.value_type | None if kind.lifts else kind.value_type
    needed = kind.value_type is not None and not kind.lifts
    aligned = kind.standing and kind.where is Where.EPOCH
    delivery: Any = Literal["immediate", "aligned"] if aligned else Literal["immediate"]
    fields: dict[str, Any] = {
        "kind": (Literal[kind.name], ...),
        "target": (target, "job" if Scope.JOB in kind.scopes else ...),
        "value": (value, ... if needed else None),
        "delivery": (delivery, "immediate"),
        "expires_at": (datetime | None, Field(None, description="Expiry time, with a time zone.")),
    }
    name = "".join(part.capitalize() for part in kind.name.replace("-", "_").split("_")) + "Request"
    return create_model(name, __base__=_Body, __doc__=kind.about, **fields)
