"""A request is accepted only from who knows the secret, and only for some minutes."""

import base64
import os
import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_ext.errors import ConfigurationError
from spark_ext.ingest.description import SCHEMES, SIGNED
from spark_ext.ingest.signatures import MOST_SIGNATURES, TOLERANCE, Rejected, check_secrets, headers_of, verify
from tests.ingest.senders import SIGN, SIGNATURES, secret_of, standard, stripe

NOW = 1_790_000_000
BODY = b'{"id": "evt_1", "amount": 12.50}'
FORGED = int(os.environ.get("SPARK_EXT_FORGED", "3000"))  # signatures; a million take some minutes

WEBHOOK = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PUBLIC = "whpk_ZlN4eg7dSSqi0moX9hQUk3orrOouK3QVQSlJa248c/g="
PRIVATE = "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk="
MESSAGE = {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330"}
V1 = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
V1A = "v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="
OTHER = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="
PAYLOAD = b'{"test": 2432232314}'
SLACK = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack"
    b".com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0"
    b"bc887a14d10d2c447fce8b6703c"
)


def refusal(scheme: str, secrets: list[str], headers: dict[str, str], body: bytes, now: float = NOW) -> str:
    with pytest.raises(Rejected) as found:
        verify(scheme, secrets, headers, body, now)
    assert found.value.status == 401
    return found.value.reason


@pytest.mark.parametrize(
    ("scheme", "secret", "headers", "body", "now"),
    [
        # The specification's libraries.
        ("standard", WEBHOOK, {**MESSAGE, "webhook-signature": V1}, PAYLOAD, 1614265330),
        ("standard", WEBHOOK[6:], {**MESSAGE, "webhook-signature": V1}, PAYLOAD, 1614265330),
        ("standard", WEBHOOK, {**MESSAGE, "webhook-signature": f"{OTHER} v2,{V1[3:]} {V1}"}, PAYLOAD, 1614265330),
        ("standard", PUBLIC, {**MESSAGE, "webhook-signature": V1A}, PAYLOAD, 1614265330),
        ("standard", PUBLIC, {**MESSAGE, "webhook-signature": f"{V1} {V1A}"}, PAYLOAD, 1614265330),
        # GitHub's documentation.
        (
            "github",
            "It's a Secret to Everybody",
            {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
            b"Hello, World!",
            0,
        ),
        # Slack's documentation.
        (
            "slack",
            "8f742231b10e8888abcd99yyyzzz85a5",
            {
                "x-slack-request-timestamp": "1531420618",
                "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
            },
            SLACK,
            1531420618,
        ),
        # What Stripe's library 16.1 has made.
        (
            "stripe",
            "whsec_test_secret",
            {
                "stripe-signature": "t=1492774577,"
                "v1=8b2c420cee31b8e4bd2094e6e7a20f4f0753531c21512c56cbf7d78df9ca4722,"
                "v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"
            },
            '{"id":"evt_1","object":"event","created":1492774577,"data":{"ü":1}}'.encode(),
            1492774577,
        ),
    ],
)
def test_published_signatures_are_valid(
    scheme: str, secret: str, headers: dict[str, str], body: bytes, now: int
) -> None:
    verify(scheme, [secret], headers, body, now)
    assert "is wrong" in refusal(scheme, [secret], headers, body + b" ", now)


@pytest.mark.parametrize("scheme", sorted(SIGNED))
def test_each_of_several_secrets_is_tried(scheme: str) -> None:
    old, new = secret_of(scheme, "the old one of 24 bytes.."), secret_of(scheme, "the new one of 24 bytes..")
    for secret in (old, new):
        verify(scheme, [old, new], SIGN[scheme](secret, BODY, NOW), BODY, NOW)
    assert "is wrong" in refusal(scheme, [new], SIGN[scheme](old, BODY, NOW), BODY)


@pytest.mark.parametrize("scheme", sorted(SIGNED))
def test_each_missing_header_is_named(scheme: str) -> None:
    secret = secret_of(scheme, "secret")
    headers = SIGN[scheme](secret, BODY, NOW)
    for name in headers.keys() - {"x-github-delivery", "x-shopify-webhook-id"}:
        for without in ({**headers, name: ""}, {key: value for key, value in headers.items() if key != name}):
            assert refusal(scheme, [secret], without, BODY) == f"the header '{name}' is missing"


@pytest.mark.parametrize("scheme", ["standard", "stripe", "slack"])
def test_a_signature_is_worth_nothing_after_some_minutes_nor_before(scheme: str) -> None:
    secret = secret_of(scheme, "secret")
    headers = SIGN[scheme](secret, BODY, NOW)
    for shift in (-TOLERANCE, 0, TOLERANCE):
        verify(scheme, [secret], headers, BODY, NOW + shift)
    assert "too old" in refusal(scheme, [secret], headers, BODY, NOW + TOLERANCE + 1)
    assert "future" in refusal(scheme, [secret], headers, BODY, NOW - TOLERANCE - 1)


@pytest.mark.parametrize(
    "text", ["", "now", "-1", "1e9", "1_790_000_000", "١٧٩٠٠٠٠٠٠٠", " 1790000000", "9" * 40, "1790000000.0"]
)
def test_a_time_is_digits_alone(text: str) -> None:
    for scheme, header in (("standard", "webhook-timestamp"), ("slack", "x-slack-request-timestamp")):
        secret = secret_of(scheme, "secret")
        refusal(scheme, [secret], {**SIGN[scheme](secret, BODY, NOW), header: text}, BODY)
    refusal("stripe", ["secret"], {"stripe-signature": f"t={text},v1=00"}, BODY)


def test_stripe_has_one_time_and_its_other_schemes_do_not_count() -> None:
    signed = stripe("secret", BODY, NOW)["stripe-signature"]
    assert "one time" in refusal("stripe", ["secret"], {"stripe-signature": signed.replace("t=", "u=")}, BODY)
    assert "one time" in refusal("stripe", ["secret"], {"stripe-signature": f"t={NOW - 9999},{signed}"}, BODY)
    assert "is wrong" in refusal("stripe", ["secret"], {"stripe-signature": signed.replace("v1=", "v0=")}, BODY)
    verify("stripe", ["secret"], {"stripe-signature": f"{signed},v1=00,v0=00"}, BODY, NOW)


def test_a_symmetric_signature_is_none_by_a_public_key_and_the_reverse() -> None:
    public = standard(PRIVATE, BODY, NOW)
    verify("standard", [WEBHOOK, PUBLIC], public, BODY, NOW)
    refusal("standard", [WEBHOOK], public, BODY)
    # With the public key as a secret, everybody who knows it could sign.
    refusal("standard", [PUBLIC], standard("whsec_" + PUBLIC[5:], BODY, NOW), BODY)
    for broken in ("v1a,", "v1a,!", "v1a," + base64.b64encode(b"short").decode(), "v1a," + V1[3:]):
        refusal("standard", [PUBLIC], {**public, "webhook-signature": broken}, BODY)


def test_only_some_signatures_are_looked_at() -> None:
    headers = standard(WEBHOOK, BODY, NOW)
    given_ones = [OTHER] * MOST_SIGNATURES
    verify(
        "standard",
        [WEBHOOK],
        {**headers, "webhook-signature": " ".join([*given_ones[1:], headers["webhook-signature"]])},
        BODY,
        NOW,
    )
    reason = refusal("standard", [WEBHOOK], {**headers, "webhook-signature": " ".join([*given_ones, "v1,x"])}, BODY)
    assert reason == "the request has more than 16 signatures"


@pytest.mark.parametrize("scheme", sorted(SIGNED))
def test_without_a_secret_nothing_is_accepted(scheme: str) -> None:
    for secrets in ([], [""], [" \n"]):
        headers = SIGN[scheme](secrets[0] if secrets else "", BODY, NOW)
        assert "is wrong" in refusal(scheme, secrets, headers, BODY)
    with pytest.raises(ConfigurationError, match="no secret was given"):
        check_secrets(scheme, [], "inbox 'orders'")
    with pytest.raises(ConfigurationError, match="secret 2 of 2 cannot be used: it is empty"):
        check_secrets(scheme, [secret_of(scheme, "secret"), " "], "inbox 'orders'")


def test_secrets_that_cannot_be_used_are_refused_without_being_shown() -> None:
    for secret in ("whsec_no base64!", "whpk_c2hvcnQ=", "whsec_"):
        with pytest.raises(ConfigurationError, match="cannot be used") as found:
            check_secrets("standard", [secret], "inbox 'orders'")
        assert "no base64!" not in str(found.value) and "c2hvcnQ" not in str(found.value)
    check_secrets("standard", [WEBHOOK, PUBLIC], "inbox 'orders'")
    check_secrets("github", ["any text"], "inbox 'orders'")


@pytest.mark.parametrize("scheme", sorted(SCHEMES.keys() - SIGNED))
def test_schemes_without_signatures_have_nothing_to_check(scheme: str) -> None:
    verify(scheme, [], {}, BODY, NOW)
    check_secrets(scheme, [], "inbox 'orders'")


def test_no_forged_signature_is_accepted() -> None:
    chance = random.Random(os.environ.get("SPARK_EXT_SEED", "7"))
    for number in range(FORGED):
        scheme = chance.choice(sorted(SIGNED))
        secrets = [secret_of(scheme, f"{chance.random()}") for _ in range(2)]
        body, time = chance.randbytes(chance.randrange(1, 200)), NOW + chance.randrange(-TOLERANCE, TOLERANCE)
        headers = SIGN[scheme](chance.choice(secrets), body, time)
        verify(scheme, secrets, headers, body, NOW)
        how, headers, body, secrets = forged(chance, scheme, headers, body, secrets)
        with pytest.raises(Rejected):
            verify(scheme, secrets, headers, body, NOW)
            pytest.fail(f"{how} number {number} of {scheme} was accepted")


def forged(
    chance: random.Random, scheme: str, headers: dict[str, str], body: bytes, secrets: list[str]
) -> tuple[str, dict[str, str], bytes, list[str]]:
    """A request that its sender has not sent so."""
    signature, at = headers[SIGNATURES[scheme]], chance.randrange(len(body))
    ways = ["bit", "cut", "longer", "secrets", "signature", "shorter signature"]
    if scheme in ("standard", "slack", "stripe"):
        ways.append("time")
    how = chance.choice(ways)
    if how == "bit":
        body = body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :]
    elif how == "cut":
        body = body[:at]
    elif how == "longer":
        body += chance.randbytes(1)
    elif how == "secrets":
        secrets = [secret_of(scheme, "another") for _ in secrets]
    elif how == "time":
        header = {"standard": "webhook-timestamp", "slack": "x-slack-request-timestamp"}.get(scheme, SIGNATURES[scheme])
        digit = chance.choice([place for place, one in enumerate(headers[header][:12]) if one.isdigit()])
        changed = (int(headers[header][digit]) + chance.randrange(1, 10)) % 10
        headers = {**headers, header: f"{headers[header][:digit]}{changed}{headers[header][digit + 1 :]}"}
    else:
        # Behind the prefix: an `=` at the end is padding.
        begin = len(signature) - 40
        place = chance.randrange(begin, len(signature.rstrip("=")))
        other = "0" if signature[place] != "0" else "1"
        changed_text = signature[:place] + other + signature[place + 1 :] if how == "signature" else signature[:place]
        headers = {**headers, SIGNATURES[scheme]: changed_text}
    return how, headers, body, secrets


@given(st.sampled_from(sorted(SIGNED)), st.text(max_size=40), st.binary(max_size=20))
def test_whatever_is_sent_is_rejected_and_not_an_error(scheme: str, text: str, body: bytes) -> None:
    headers = SIGN[scheme](secret_of(scheme, "secret"), BODY, NOW)
    for name in headers.keys() - {"x-github-delivery", "x-shopify-webhook-id"}:
        with pytest.raises(Rejected):
            verify(scheme, [WEBHOOK, PUBLIC], {**headers, name: text}, body, NOW)


def test_headers_on_which_the_acceptance_depends_are_there_once() -> None:
    found = headers_of([(b"Webhook-ID", b" a\t"), (b"X-Any", b"1"), (b"x-any", b"2"), (b"X-Name", "Jürgen".encode())])
    assert found == {"webhook-id": "a", "x-any": "1, 2", "x-name": "Jürgen"}
    for name in (b"webhook-id", b"Stripe-Signature", b"CE-Id", b"Content-Type", b"X-Sequence", b"Authorization"):
        with pytest.raises(Rejected, match=f"the header '{name.decode().lower()}' is given twice"):
            headers_of([(name, b"a"), (name.upper(), b"a")])
        with pytest.raises(Rejected, match=f"the header '{name.decode().lower()}' is not ASCII"):
            headers_of([(name, "ü".encode())])
