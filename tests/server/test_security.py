"""Who may ask for what, from where; and that no token is found anywhere."""

import logging
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from spark_ext import masking
from spark_ext.ledger.schema import ControlRequestRow
from spark_ext.server.guard import Hosts
from spark_ext.server.limits import Limits
from spark_ext.server.server import ControlServer, Tls
from spark_ext.server.tokens import create, generate, revoke
from tests.control.states import State
from tests.server.served import JOB, Served, client, serving

pytestmark = pytest.mark.core

OF_JOB = ("", "/epochs", "/finished", "/checkpoints", "/incidents", "/config?query=q", "/kinds", "/nothing")
OF_HISTORY = ("/events", "/timeline", "/availability")
OF_CONTROL = ("/control", "/control/x", "/control/stream")
OF_PAGE = ("/page", "/page/series", "/page/stream", "/page/incidents/x")
PAGES = (
    "/ready", "/metrics", "/openapi.json", "/v1/jobs", "/docs",
    *(f"{JOB}{page}" for page in OF_JOB + OF_HISTORY + OF_CONTROL + OF_PAGE),
    "/page", "/page/", "/page/index.html", "/page/../v1/jobs",
)  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("security")
    limits = Limits(refused_rate=1_000, refused_burst=1_000)
    with serving(State(folder / "state"), allowed_hosts=["control.example"], limits=limits) as found:
        yield found


def test_only_health_and_the_files_of_the_page_need_no_token(served: Served) -> None:
    with httpx.Client(base_url=served.server.url) as http:
        for page in PAGES:
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"):
                answer = http.request(method, page)
                assert answer.status_code == 401, (method, page)
                assert answer.headers["www-authenticate"].startswith("Bearer")
        assert http.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "{token}"}, {"Authorization": "Basic {token}"}, {"Authorization": "Bearer"},
        {"Authorization": "Bearer {token}x"}, {"Authorization": "Bearer {token} x"}, {"Authorization": "Bearer \xff"},
        {"X-Token": "{token}"}, {"Cookie": "token={token}"},
    ],
)  # fmt: skip
def test_what_is_not_a_bearer_token_does_not_count(served: Served, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.format(token=served.token).encode("latin-1")) for name, value in headers.items()]
    for name in ("x", "token", "access_token", "authorization"):
        assert httpx.get(f"{served.server.url}/v1/jobs?{name}={served.token}", headers=raw).status_code == 401
        assert httpx.get(f"{served.server.url}/v1/jobs?{name}={served.token}").status_code == 401


def test_two_headers_are_not_a_token(served: Served) -> None:
    headers = [("Authorization", f"Bearer {served.token}"), ("Authorization", "Bearer x")]
    assert httpx.get(f"{served.server.url}/v1/jobs", headers=headers).status_code == 401


def test_scopes(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    reader, writer = create(file, "reader", ["read"]), create(file, "writer", ["control"])
    with ControlServer(State(tmp_path / "state").path, tokens=file) as server:
        assert server.token is None

        def status(token: str, method: str) -> int:
            body = {"kind": "pause"} if method == "POST" else None
            return client(server, token).request(method, f"{JOB}/control", json=body).status_code

        assert (status(reader, "GET"), status(reader, "POST")) == (200, 403)
        assert (status(writer, "GET"), status(writer, "POST")) == (403, 202)
        for method in ("PUT", "PATCH", "DELETE", "TRACE"):
            assert (status(reader, method), status(writer, method)) == (403, 405)
        (event,) = client(server, reader).get(f"{JOB}/control").json()["events"]
        assert event["requested_by"] == "writer"
        assert revoke(file, "writer")
        assert status(writer, "POST") == 401


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True), ("localhost:{port}", True), ("LOCALHOST.", True), ("[::1]:{port}", True),
        ("control.example", True), ("control.example:443", True), ("evil.example", False), ("10.0.0.1", False),
        ("127.0.0.1.evil.example", False), ("localhost.evil.example:{port}", False), ("", False),
        ("evil.example, localhost", False),
    ],
)  # fmt: skip
def test_a_foreign_host_is_refused(served: Served, host: str, allowed: bool) -> None:
    host = host.format(port=served.server.url.rpartition(":")[2])
    for page in ("/v1/jobs", "/health"):
        answer = served.http.get(page, headers={"Host": host})
        assert (answer.status_code == 200) is allowed, answer.text
        if not allowed:
            assert (answer.status_code, answer.json()["reason"]) == (403, "foreign_host")


def test_hosts_of_a_server_on_all_addresses() -> None:
    hosts = Hosts("0.0.0.0", ["control.example"])
    assert all(hosts.allow(host) for host in ("10.0.0.1:80", "[fe80::1]:80", "control.example", "localhost"))
    assert not any(hosts.allow(host) for host in ("evil.example", "evil.example:80", ""))


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("{url}", True), ("null", False), ("", False), ("http://evil.example", False), ("http://localhost:1", False),
        ("{url}.evil.example", False), ("http://127.0.0.1", False),
    ],
)  # fmt: skip
def test_a_foreign_origin_is_refused(served: Served, origin: str, allowed: bool) -> None:
    headers = {"Origin": origin.format(url=served.server.url)}
    for answer in (served.http.get("/v1/jobs", headers=headers), served.post("pause", headers=headers)):
        assert (answer.status_code < 300) is allowed
        assert "access-control-allow-origin" not in answer.headers
        if not allowed:
            assert (answer.status_code, answer.json()["reason"]) == (403, "foreign_origin")


def test_a_request_without_a_host_is_refused(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", int(served.server.url.rpartition(":")[2]))) as raw:
        raw.sendall(f"GET /v1/jobs HTTP/1.0\r\nAuthorization: Bearer {served.token}\r\n\r\n".encode())
        assert b" 403 " in raw.recv(100)


def test_guessing_is_slowed_down(tmp_path: Path) -> None:
    with serving(State(tmp_path / "state"), limits=Limits(refused_rate=0.5, refused_burst=3, refusal_seconds=0)) as own:
        answers = [httpx.get(f"{own.server.url}/v1/jobs") for _ in range(6)]
        assert [one.status_code for one in answers[:3]] == [401, 401, 401]
        assert answers[5].status_code == 429 and int(answers[5].headers["retry-after"]) >= 1
        assert own.http.get("/v1/jobs").status_code == 200


def test_the_audit_says_who_asked_for_what(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    with serving(state) as own:
        accepted = own.set_key(1).json()["id"]
        own.post("nonsense")
        own.http.get("/v1/jobs")
        httpx.get(f"{own.server.url}{JOB}/control?token={own.token}")
        own.http.get(f"{JOB}/{own.token}")
    rows = sorted(state.ledger.table(ControlRequestRow).rows(), key=lambda row: row.at)
    assert [(row.requested_by, row.method, row.path, row.status, row.event_id) for row in rows] == [
        ("local", "POST", f"{JOB}/control", 202, accepted), ("local", "POST", f"{JOB}/control", 400, None),
        ("", "GET", f"{JOB}/control", 401, None), ("local", "GET", f"{JOB}/***", 404, None),
    ]  # fmt: skip
    assert [bool(row.reason) for row in rows] == [False, True, True, True]


def test_no_token_is_in_a_log_the_ledger_or_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither one that is used, nor a valid one that is sent where it does not belong, nor one of another server."""
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "tokens"
    tokens = [create(file, "ann"), create(file, "bob"), generate()]
    masking.forget()  # as in a server that only has the hashes
    state = State(tmp_path / "state")
    texts: list[str] = []
    with ControlServer(state.path, tokens=file) as server, httpx.Client(base_url=server.url) as http:
        for token in tokens:
            own = {"Authorization": f"Bearer {tokens[0]}"}
            for answer in (
                http.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"}),
                http.get(f"/v1/jobs?token={token}"), http.get(f"/v1/jobs/{token}", headers=own),
                http.get(f"{JOB}/control?status={token}", headers=own),
                http.get(f"{JOB}/control?{token}=1", headers=own), http.get(f"{JOB}/control/{token}", headers=own),
                http.get(f"{JOB}/config?query={token}", headers=own),
                http.post(f"{JOB}/control", headers=own, json={"kind": token}),
                http.post(f"{JOB}/control", headers=own, json={"kind": "pause", "target": token}),
                http.post(f"{JOB}/control", headers=own, json={"kind": "pause", "target": f"source:{token}"}),
                http.post(f"{JOB}/control", headers=own, json={token: 1, "kind": "pause"}),
                http.post(f"{JOB}/control", headers={**own, "Idempotency-Key": token * 9}, json={"kind": "pause"}),
                http.get("/v1/jobs", headers={**own, "Origin": f"http://{token}"}),
                http.get("/v1/jobs", headers={**own, "Host": token}),
            ):  # fmt: skip
                texts += [answer.text, str(answer.headers)]
    # httpx is the client, whose lines have the addresses that the test itself has made up.
    texts += [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    texts += [path.read_bytes().decode("latin-1") for path in state.folder.rglob("*") if path.is_file()]
    texts += [repr(row) for table in state.ledger.tables.values() for row in table.rows()]
    assert len(texts) > 80
    assert not [text for text in texts if any(token in text for token in tokens)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_https(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ["openssl", "req", "-x509", *curve, "-nodes", "-days", "1", *names, "-keyout", key, "-out", certificate]
    subprocess.run(made, check=True, capture_output=True)
    with ControlServer(State(tmp_path / "state").path, tls=Tls(certificate, key)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=certificate)
        headers = {"Authorization": f"Bearer {server.token}", "Origin": server.url}
        assert httpx.get(f"{server.url}/v1/jobs", verify=trusted, headers=headers).status_code == 200
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    with serving(State(tmp_path / "state"), limits=Limits(body_seconds=0.2)) as own:
        with socket.create_connection(("127.0.0.1", int(own.server.url.rpartition(":")[2])), timeout=30) as raw:
            head = f"POST {JOB}/control HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {own.token}\r\n"
            raw.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{".encode())
            assert b" 400 " in raw.recv(100)
        assert own.set_key(1).status_code == 202
