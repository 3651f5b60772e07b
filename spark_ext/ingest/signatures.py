"""Whether a request was sent by who knows the secret, by the rules of each scheme. Pure.

All of them sign with HMAC-SHA256, but for the second kind of Standard Webhooks, ed25519. Three sign the time at which
they send as well, so that a request that was overheard is worth nothing after some minutes.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from spark_ext.clients.library import load
from spark_ext.errors import refused
from spark_ext.ingest.description import SIGNED

TOLERANCE: Final = 300  # s between the time that was signed and now, before and after
MOST_SIGNATURES: Final = 16  # of one request: each costs time
SECRET: Final = "whsec_"
PUBLIC: Final = "whpk_"
PUBLIC_BYTES: Final = 32

_SECONDS: Final = re.compile(r"[0-9]{1,12}")
# Headers that say who sends, what, or under which identity: with two of one it would be open which one counts.
_ONCE: Final = re.compile(
    r"webhook-(id|timestamp|signature)|stripe-signature|x-slack-.*|x-hub-signature-256|x-github-(delivery|event)"
    r"|x-shopify-.*|idempotency-key|x-producer|x-sequence|ce-.*|content-(type|encoding|length)|authorization"
)


class Rejected(Exception):
    """A request that is not accepted; the reason is one that its sender may know."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def headers_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers of a request by their names in lower case.

    Of a header that is there several times the values are joined, as HTTP has it.

    Raises:
        Rejected: a header on which the acceptance depends is there twice, or is not ASCII.
    """
    found: dict[str, str] = {}
    for raw, content in pairs:
        name = raw.decode("latin-1").lower()
        try:
            value = content.decode("ascii").strip(" \t")
        except UnicodeDecodeError:
            if _once(name):
                raise Rejected(400, f"the header '{name}' is not ASCII") from None
            value = content.decode("utf-8", "replace")
        if name in found:
            if _once(name):
                raise Rejected(400, f"the header '{name}' is given twice")
            value = f"{found[name]}, {value}"
        found[name] = value
    return found


@lru_cache(maxsize=1024)
def _once(name: str) -> bool:
    return _ONCE.fullmatch(name) is not None


def verify(scheme: str, secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> None:
    """Check the signature of a request; a scheme without signatures has nothing to check.

    Args:
        secrets: those that are valid, several while one is being replaced.
        headers: by their names in lower case.
        now: seconds since 1970 UTC.

    Raises:
        Rejected: it has no signature, none by one of the secrets, or one that is too old.
    """
    if scheme in SIGNED:
        _CHECKS[scheme]([one for one in secrets if one.strip()], headers, body, now)


def check_secrets(scheme: str, secrets: Sequence[str], who: str) -> None:
    """Refuse secrets with which nothing could be accepted, or one of them.

    Raises:
        ConfigurationError: a secret is missing or malformed, or the library for its kind.
    """
    if scheme in SIGNED and not secrets:
        what = f"the scheme '{scheme}' has signatures, and no secret was given"
        raise refused(what, who, "name the environment variable or file of the secret")
    for number, secret in enumerate(secrets, 1):
        try:
            if not secret.strip():
                raise ValueError("it is empty")
            if scheme == "standard":
                _key(secret)
        except ValueError as problem:
            what = f"secret {number} of {len(secrets)} cannot be used: {problem}"
            raise refused(what, who, "copy it again from the page of the sender") from None


def _standard(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> None:
    signed = f"{_header(headers, 'webhook-id')}.{_recent(_header(headers, 'webhook-timestamp'), now)}."
    content = signed.encode() + body
    given = _header(headers, "webhook-signature").split()
    _check_number(given)
    for secret in secrets:
        key = _key(secret)
        version = "v1," if isinstance(key, bytes) else "v1a,"
        values = [one[len(version) :] for one in given if one.startswith(version)]
        if isinstance(key, bytes):
            if _equals(base64.b64encode(_hmac(key, content)), values):
                return
        elif any(_signed(key, content, value) for value in values):
            return
    raise _wrong("webhook-signature")


@lru_cache(maxsize=64)
def _key(secret: str) -> Any:
    """The key for HMAC, or the public key of ed25519, in a secret of Standard Webhooks."""
    text = secret.strip()
    public = text.startswith(PUBLIC)
    text = text.removeprefix(PUBLIC if public else SECRET)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"behind '{PUBLIC if public else SECRET}' it is not base64") from None
    if not key or (public and len(key) != PUBLIC_BYTES):
        raise ValueError(f"it has {len(key)} bytes")
    if not public:
        return key
    ed25519 = load("cryptography.hazmat.primitives.asymmetric.ed25519", "ingest", "scheme 'standard'", "the gateway")
    return ed25519.Ed25519PublicKey.from_public_bytes(key)


def _signed(key: Any, content: bytes, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(base64.b64decode(signature, validate=True), content)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def _stripe(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> None:
    name = "stripe-signature"
    pairs = [part.strip().partition("=") for part in _header(headers, name).split(",")]
    times = [value for key, _, value in pairs if key == "t"]
    given = [value for key, _, value in pairs if key == "v1"]
    if len(times) != 1:
        raise Rejected(401, f"the header '{name}' does not have one time, as in t=1492774577")
    _check_number(given)
    _check_hex(secrets, f"{_recent(times[0], now)}.".encode() + body, given, name)


def _slack(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> None:
    name = "x-slack-signature"
    time = _recent(_header(headers, "x-slack-request-timestamp"), now)
    _check_hex(secrets, f"v0:{time}:".encode() + body, _behind("v0=", headers, name), name)


def _github(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> None:
    name = "x-hub-signature-256"
    _check_hex(secrets, body, _behind("sha256=", headers, name), name)


def _shopify(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> None:
    name = "x-shopify-hmac-sha256"
    given = [_header(headers, name)]
    if not any(_equals(base64.b64encode(_hmac(one.encode(), body)), given) for one in secrets):
        raise _wrong(name)


_CHECKS: Final[Mapping[str, Callable[[Sequence[str], Mapping[str, str], bytes, float], None]]] = {
    "standard": _standard,
    "stripe": _stripe,
    "slack": _slack,
    "github": _github,
    "shopify": _shopify,
}


def _header(headers: Mapping[str, str], name: str) -> str:
    if not (value := headers.get(name, "")):
        raise Rejected(401, f"the header '{name}' is missing")
    return value


def _behind(prefix: str, headers: Mapping[str, str], name: str) -> list[str]:
    value = _header(headers, name)
    if not value.startswith(prefix):
        raise Rejected(401, f"the header '{name}' does not begin with '{prefix}'")
    return [value.removeprefix(prefix)]


def _recent(text: str, now: float) -> str:
    """A time that was signed, as it was sent."""
    if not _SECONDS.fullmatch(text):
        raise Rejected(401, "the time of the signature is not a number of seconds")
    if abs(now - int(text)) > TOLERANCE:
        late = "old" if int(text) < now else "far in the future"
        raise Rejected(401, f"the signature is too {late}: more than {TOLERANCE} s; check both clocks")
    return text


def _check_number(given: Sequence[str]) -> None:
    if len(given) > MOST_SIGNATURES:
        raise Rejected(401, f"the request has more than {MOST_SIGNATURES} signatures")


def _check_hex(secrets: Sequence[str], content: bytes, given: Sequence[str], name: str) -> None:
    if not any(_equals(_hmac(secret.encode(), content).hex().encode(), given) for secret in secrets):
        raise _wrong(name)


def _hmac(key: bytes, content: bytes) -> bytes:
    digest = _keyed(key).copy()
    digest.update(content)
    return digest.digest()


@lru_cache(maxsize=64)
def _keyed(key: bytes) -> hmac.HMAC:
    """What depends on the key alone, which takes as long as all else."""
    return hmac.new(key, digestmod="sha256")


def _equals(expected: bytes, given: Iterable[str]) -> bool:
    """Whether one of them is what is expected; how long it takes does not tell how much of it is right."""
    return any([hmac.compare_digest(expected, one.encode("utf-8", "surrogatepass")) for one in given])


def _wrong(name: str) -> Rejected:
    return Rejected(401, f"the signature in '{name}' is wrong: it was made with another secret, or for another body")
