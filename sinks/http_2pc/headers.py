"""Which headers a user may add to the requests. Pure functions; no message contains a value."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from spark_ext.options import is_secret_parameter

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token of RFC 9110."""

_OWN = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that follow from the request or belong to the connection."""

_OWN_PREFIX = "spark-ext-"


def checked(given: Mapping[str, str], key_header: str, *, with_token: bool) -> dict[str, str]:
    """A user's headers; `with_token` if the sink sends `Authorization` itself."""
    key = key_header.lower()
    if _is_own(key) or key == "authorization":
        raise ValueError(f"'{key_header}' cannot be the header of the idempotency key: it has a meaning of its own")
    seen: set[str] = set()
    for name, value in given.items():
        small = name.lower()
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a header")
        check_value(f"header '{name}'", value)
        if small == key:
            raise ValueError(f"the header '{name}' is the idempotency key, which only the sink can set")
        if _is_own(small):
            raise ValueError(f"the header '{name}' is set by the sink itself")
        if small == "authorization" and with_token:
            raise ValueError(f"the token and the header '{name}' exclude each other")
        if small in seen:
            raise ValueError(f"the header '{name}' is given twice; upper and lower case are the same")
        seen.add(small)
    return dict(given)


def check_value(what: str, value: str) -> None:
    """Check a header's value, which is not shown."""
    if not value:
        raise ValueError(f"the {what} is empty")
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"the {what} contains characters that are not allowed in headers, such as a line end")
    if value != value.strip():
        raise ValueError(f"the {what} begins or ends with a blank")


def credentials_in_clear(url: str, headers: Mapping[str, str]) -> list[str]:
    """Names of the headers and parameters whose secret values anybody on the way to this address can read."""
    parts = urlsplit(url)
    if parts.scheme == "https" or _is_here(parts.hostname or ""):
        return []
    names = [*headers, *(parameter.partition("=")[0] for parameter in parts.query.split("&"))]
    return [name for name in names if is_secret_parameter(name) or name.lower() in ("cookie", "proxy-authorization")]


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith(_OWN_PREFIX)
