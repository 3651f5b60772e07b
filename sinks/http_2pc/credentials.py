"""Which headers a user may add to the requests, and tokens of OAuth 2 by client credentials (RFC 6749, section 4.4).

No message contains a header's value. A token is kept in the memory of the process that sends, and nowhere else. It is
renewed before it ends, and once when the receiver refuses it earlier than that.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote_plus, urlencode, urlsplit

from spark_ext import masking
from spark_ext.options import is_secret_parameter

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Headers that follow from the request or belong to the connection.
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


_EARLY_S: Final = 60.0  # How long before its end a token is renewed; at most a tenth of its life
_MOST_LIFE_S: Final = 10 * 365 * 86_400.0


@dataclass(frozen=True)
class Grant:
    """For what, and as whom, a token is asked."""

    url: str
    client: str
    secret: str = field(repr=False)
    scope: str | None = None
    audience: str | None = None
    auth: Literal["basic", "body"] = "basic"

    def request(self) -> tuple[dict[str, str], bytes]:
        """Headers and body of the request for a token. The headers contain the secret."""
        form = {"grant_type": "client_credentials"}
        form |= {name: value for name, value in (("scope", self.scope), ("audience", self.audience)) if value}
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if self.auth == "body":
            form |= {"client_id": self.client, "client_secret": self.secret}
        else:
            pair = f"{quote_plus(self.client)}:{quote_plus(self.secret)}"
            encoded = base64.b64encode(pair.encode()).decode()
            masking.remember(encoded)
            headers["Authorization"] = f"Basic {encoded}"
        return headers, urlencode(form).encode()


@dataclass(frozen=True)
class Token:
    """A token."""

    text: str = field(repr=False)
    renew: float | None  # When it is renewed, s by the clock with which it was made; None: when it is refused

    def fresh(self, now: float) -> bool:
        """Whether it may be used."""
        return self.renew is None or now < self.renew


def token_of(answer: str, now: float) -> Token:
    """The token in an answer; it is masked from now on."""
    found = _object(answer)
    text = found.get("access_token")
    if not isinstance(text, str) or not text:
        raise ValueError("it has no access_token")
    masking.remember(text)
    kind = found.get("token_type", "Bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ValueError("its token_type is not Bearer")
    check_value("access_token", text)
    life = found.get("expires_in")
    if isinstance(life, str) and life.isdecimal():
        life = int(life)
    if life is None:
        return Token(text, None)
    if isinstance(life, bool) or not isinstance(life, (int, float)) or not 0 < life < _MOST_LIFE_S:
        raise ValueError("its expires_in is not a number of seconds")
    return Token(text, now + life - min(_EARLY_S, life / 10))


def reason_of(answer: str) -> str:
    """Why the endpoint refuses, from `error` and `error_description` in its answer."""
    found = _object(answer)
    said = [found[name] for name in ("error", "error_description") if isinstance(found.get(name), str)]
    return ": ".join(said)


def _object(answer: str) -> Mapping[str, Any]:
    try:
        found = json.loads(answer)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_tokens: dict[Grant, Token] = {}  # Of this process


def kept(grant: Grant, now: float) -> str | None:
    """The token that this process has and may use; None: it has to ask for one."""
    found = _tokens.get(grant)
    return found.text if found is not None and found.fresh(now) else None


def keep(grant: Grant, token: Token) -> None:
    """Use a token from now on."""
    _tokens[grant] = token


def drop(grant: Grant, text: str) -> None:
    """The receiver has refused a token: do not use it again."""
    if (found := _tokens.get(grant)) is not None and found.text == text:
        del _tokens[grant]
