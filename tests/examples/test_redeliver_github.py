"""The script that has GitHub deliver again what failed, against a server with that part of GitHub's interface."""

import json
import runpy
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "gallery" / "redeliver_github.py"
HOOK = "repos/shop/orders/hooks/7"


class GitHub(BaseHTTPRequestHandler):
    """Two deliveries on a page, as the listing is paged by a cursor."""

    deliveries: ClassVar[list[dict[str, Any]]] = []
    requested: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        at = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        more = f"<http://{self.headers['Host']}/{HOOK}/deliveries?per_page=100&cursor={at + 2}>"
        link = f'{more}; rel="next"' if at + 2 < len(self.deliveries) else ""
        self._answer(200, self.deliveries[at : at + 2], link)

    def do_POST(self) -> None:
        self.requested.append(self.path)
        self._answer(202, {})

    def _answer(self, status: int, body: Any, link: str = "") -> None:
        assert self.headers["Authorization"] == "Bearer secret"
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Link", link)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def github() -> Iterator[str]:
    GitHub.deliveries, GitHub.requested = [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), GitHub) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def delivery(number: int, guid: str, status: int, hours: float) -> dict[str, Any]:
    at = datetime.now(timezone.utc) - timedelta(hours=hours)
    return {"id": number, "guid": guid, "status_code": status, "delivered_at": at.isoformat().replace("+00:00", "Z")}


def test_what_failed_is_requested_again_once(
    github: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    GitHub.deliveries = [
        delivery(9, "just-now", 503, 0.001),  # another attempt may be under way
        delivery(8, "twice", 503, 1),
        delivery(7, "recovered", 202, 2),
        delivery(6, "recovered", 503, 3),
        delivery(5, "no-answer", 0, 4),
        delivery(4, "malformed", 422, 5),  # the next attempt would end alike
        delivery(3, "twice", 429, 6),
        delivery(2, "delivered", 202, 7),
        delivery(1, "forgotten", 503, 80),  # GitHub does not have it any more
    ]
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("GITHUB_API", github)
    monkeypatch.setattr("sys.argv", ["redeliver_github.py", f"/{HOOK}"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert GitHub.requested == [f"/{HOOK}/deliveries/{number}/attempts" for number in (8, 5)]
    assert capsys.readouterr().out == "requested again: 2 twice no-answer\n"
