"""Signs as senders do, by their documentation and without the code that is tested."""

import base64
import hashlib
import hmac
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def mac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def standard(secret: str, body: bytes, time: int, id: str = "msg_1") -> dict[str, str]:
    content = b".".join([id.encode(), str(time).encode(), body])
    if secret.startswith("whsk_"):
        key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(secret[5:]))
        signature = b"v1a," + base64.b64encode(key.sign(content))
    else:
        signature = b"v1," + base64.b64encode(mac(base64.b64decode(secret.removeprefix("whsec_")), content))
    return {"webhook-id": id, "webhook-timestamp": str(time), "webhook-signature": signature.decode()}


def stripe(secret: str, body: bytes, time: int) -> dict[str, str]:
    signature = mac(secret.encode(), str(time).encode() + b"." + body).hex()
    return {"stripe-signature": f"t={time},v1={signature}"}


def slack(secret: str, body: bytes, time: int) -> dict[str, str]:
    signature = mac(secret.encode(), b"v0:" + str(time).encode() + b":" + body).hex()
    return {"x-slack-request-timestamp": str(time), "x-slack-signature": f"v0={signature}"}


def github(secret: str, body: bytes, time: int) -> dict[str, str]:
    return {"x-hub-signature-256": f"sha256={mac(secret.encode(), body).hex()}", "x-github-delivery": "d-1"}


def shopify(secret: str, body: bytes, time: int) -> dict[str, str]:
    signature = base64.b64encode(mac(secret.encode(), body)).decode()
    return {"x-shopify-hmac-sha256": signature, "x-shopify-webhook-id": "w-1"}


SIGN: dict[str, Callable[..., dict[str, str]]] = {
    "standard": standard,
    "stripe": stripe,
    "slack": slack,
    "github": github,
    "shopify": shopify,
}
SIGNATURES = {  # the header that has it
    "standard": "webhook-signature",
    "stripe": "stripe-signature",
    "slack": "x-slack-signature",
    "github": "x-hub-signature-256",
    "shopify": "x-shopify-hmac-sha256",
}


def secret_of(scheme: str, text: str) -> str:
    """A secret as a scheme has them."""
    return "whsec_" + base64.b64encode(text.encode()).decode() if scheme == "standard" else text
