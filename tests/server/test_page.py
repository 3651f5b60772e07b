"""The page of the server: its files are for everybody, what it shows is not."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import ControlRequestRow, EpochRow
from spark_ext.server import assets
from spark_ext.server.page_view import PageView, keyed
from spark_ext.server.server import ControlServer
from spark_ext.server.tokens import create
from tests.control.states import State
from tests.ledger.rows import epoch, incident, state
from tests.server.served import JOB, Served, client, serving
from tests.support.patches import patched


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = State(tmp_path_factory.mktemp("page") / "state")
    for row in (state("RUNNING"), state("RUNNING", "q"), epoch(0), epoch(1), incident(1)):
        made.writer.append(row)
    with serving(made) as found:
        yield found


def test_the_files_need_no_token_and_have_no_data(served: Served) -> None:
    with httpx.Client(base_url=served.server.url) as http:
        for path in assets.paths():
            answer = http.get(path)
            assert answer.status_code == 200, path
            for text in (served.token, served.state.path, served.state.incarnation.job_id, "it failed"):
                assert text not in answer.text
            assert http.post(path).status_code == 405
        assert http.get("/").headers["content-type"] == "text/html; charset=utf-8"
        assert http.get("/page/main.js").headers["content-type"].startswith("text/javascript")
    assert served.http.get("/page/nothing.js").status_code == 404
    assert served.http.get("/page/..%2Fguard.py").status_code == 404


def test_the_policy_allows_no_script_but_that_of_the_page(served: Served) -> None:
    headers = httpx.get(served.server.url).headers
    assert headers.get_list("content-security-policy") == [assets.POLICY]
    assert "script-src 'self';" in assets.POLICY and "default-src 'none'" in assets.POLICY
    assert "unsafe" not in assets.POLICY and "frame-ancestors 'none'" in assets.POLICY
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    data = served.http.get(f"{JOB}/page").headers.get_list("content-security-policy")
    assert data == ["default-src 'none'; frame-ancestors 'none'"]


def test_another_host_or_origin_gets_no_page(served: Served) -> None:
    assert httpx.get(served.server.url, headers={"Host": "evil.example"}).status_code == 403
    assert httpx.get(served.server.url, headers={"Origin": "http://evil.example"}).status_code == 403


def test_looking_at_the_page_leaves_no_row_in_the_audit(served: Served) -> None:
    with httpx.Client(base_url=served.server.url) as http:
        for path in re.findall(r'(?:href|src)="(page/[^"]+)"', http.get("/").text):
            assert http.get(f"/{path}").status_code == 200
    rows = served.state.ledger.table(ControlRequestRow).rows()
    assert not [row for row in rows if row.path in assets.paths()]


def test_the_document_a_series_and_an_incident(served: Served) -> None:
    document = served.http.get(f"{JOB}/page").json()
    assert [query["uid"] for query in document["queries"]] == ["q", "r"]
    series = served.http.get(f"{JOB}/page/series", params={"query": "q"}).json()
    assert series["epochs"] == [1, 1] and series["mean"] == [5, 5]
    assert served.http.get(f"{JOB}/page/series", params={"since": series["at"][1]}).json()["at"] == series["at"][1:]
    assert served.http.get(f"{JOB}/page/series", params={"query": "nobody"}).json()["at"] == []
    assert served.http.get(f"{JOB}/page/incidents/i1").json()["what"] == "it failed"
    assert served.http.get(f"{JOB}/page/incidents/i2").status_code == 404


def messages_of(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    event = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            event = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield event, json.loads(line.removeprefix("data: "))


def test_a_stream_begins_with_the_document_and_sends_changes(served: Served) -> None:
    with served.http.stream("GET", f"{JOB}/page/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        messages = messages_of(answer)
        assert next(messages) == ("caller", {"name": "local", "scopes": ["control", "read"]})
        event, document = next(messages)
        assert event == "page"
        known = keyed(document)
        before = len(known["incidents"])
        served.state.writer.append(incident(before + 1))
        while len(known["incidents"]) == before:
            event, patch = next(messages)
            assert event == "change"
            known = patched(known, patch)
        now = served.http.get(f"{JOB}/page").json()
        assert known["incidents"] == now["incidents"] and known["job"]["name"] == "orders"


def test_a_token_that_may_only_read_sees_the_page_and_is_said_to(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    token = create(tokens, "viewer", ["read"])
    with ControlServer(State(tmp_path / "state").path, tokens=tokens) as server:
        http = client(server, token)
        with http.stream("GET", f"{JOB}/page/stream") as answer:
            assert next(messages_of(answer)) == ("caller", {"name": "viewer", "scopes": ["read"]})


def test_the_server_stops_while_somebody_looks(tmp_path: Path) -> None:
    with serving(State(tmp_path / "state")) as found, found.http.stream("GET", f"{JOB}/page/stream") as answer:
        messages = messages_of(answer)
        next(messages), next(messages)
        found.server.stop()
        assert len(list(messages)) < 100, "it ends"


def test_the_document_is_remade_only_after_a_change_or_a_while(tmp_path: Path) -> None:
    made = State(tmp_path / "state")
    time = 0.0
    view = PageView(Ledger(made.path), lambda: time)
    first = view.poll()
    made.ledger.table(EpochRow).append([epoch(0)])
    time = 0.9
    assert view.poll() is first
    time = 1.1
    second = view.poll()
    assert second.number == 2 and second.document["job"]["epochs"] == 1
    time = 3.0
    assert view.poll() is second
    time = 6.5
    assert view.poll().number == 3
    assert view.patch(first, second) is view.patch(first, second)


def test_nothing_is_read_until_somebody_looks(served: Served, tmp_path: Path) -> None:
    with serving(State(tmp_path / "state")) as found:
        found.http.get("/ready")
        assert found.server._jobs is not None and found.server._jobs.all[0]._page is None
