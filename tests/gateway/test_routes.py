"""Which address is what, and that no token in one is shown."""

import pytest

from spark_ext.gateway.app import without
from spark_ext.gateway.routes import Kind, Route, Routes, shown


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/health", Route(Kind.HEALTH)),
        ("/v1/inboxes/a%20b", Route(Kind.EVENTS)),
        ("/v1/inboxes/a b/", Route(Kind.EVENTS, "")),
        ("/v1/inboxes/a%20b/eu/new%2Fold", Route(Kind.EVENTS, "eu/new/old", None, "new/old")),
        ("/v1/inboxes/a%20b/t/T", Route(Kind.EVENTS, "", "T")),
        ("/v1/inboxes/a%20b/t/T/x", Route(Kind.EVENTS, "x", "T", "x")),
        ("/v1/inboxes/a%20b/t", Route(Kind.EVENTS, "t", None, "t")),
        ("/v1/inboxes/a%20b/producers/p%2F1", Route(Kind.PRODUCER, "producers/p/1", None, "p/1")),
        ("/v1/inboxes/a%20b/t/T/receipts/g1:7", Route(Kind.RECEIPT, "receipts/g1:7", "T", "g1:7")),
        ("/v1/inboxes/a%20b/ws", Route(Kind.WEBSOCKET, "ws", None, "ws")),
        ("/v1/inboxes/a%20b/t/T/ws", Route(Kind.WEBSOCKET, "ws", "T", "ws")),
        ("/v1/inboxes/ab", Route(Kind.NONE)),
        ("/v1/inboxes", Route(Kind.NONE)),
        ("/v1/inboxes/a%20bc", Route(Kind.NONE)),
        ("/v2/inboxes/a%20b", Route(Kind.NONE)),
        ("/", Route(Kind.NONE)),
        ("/\xe4", Route(Kind.NONE)),
    ],
)
def test_addresses(path: str, route: Route) -> None:
    assert Routes("a b").find(path.encode("latin-1")) == route


@pytest.mark.parametrize("between", ["/t/", "/t%2F", "%2ft/", "%2Ft%2f", "/x/t/"])
def test_a_path_is_shown_without_its_token(between: str) -> None:
    text = shown(f"/v1/inboxes/orders{between}sxt_secret/rest".encode())
    assert "secret" not in text and text.startswith("/v1/inboxes/orders")


def test_headers_in_which_a_proxy_repeats_the_address_are_not_kept() -> None:
    headers = {
        "x-original-uri": "/v1/inboxes/orders/t/a%2Bb",
        "x-forwarded-for": "10.0.0.1",
        "referer": "http://x/t/a+b",
    }
    assert without(headers, "a+b") == {"x-forwarded-for": "10.0.0.1"}
