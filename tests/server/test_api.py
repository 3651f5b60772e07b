"""The server's answers, over HTTP, for a state directory without Spark."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest

from spark_ext.control.known import KnownJob
from spark_ext.control.log import ControlLog
from spark_ext.control.requests import Request
from spark_ext.control.service import ControlService
from spark_ext.errors import ConfigurationError
from spark_ext.ledger import Ledger, view
from spark_ext.ledger.schema import ControlEventRow
from spark_ext.model.configuration import Configuration
from spark_ext.server.limits import Limits
from spark_ext.server.server import ControlServer
from spark_ext.server.tokens import create
from tests.control.states import State, now
from tests.ledger.rows import incident
from tests.server.served import JOB, Served, client, serving
from tests.support.waiting import until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(State(tmp_path_factory.mktemp("api") / "state")) as found:
        yield found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Served]:
    with serving(State(tmp_path / "state")) as found:
        yield found


def event_of(state: State, event_id: str) -> Any:
    (row,) = [row for row in state.ledger.table(ControlEventRow).rows() if row.event_id == event_id]
    return view.event_of(row)


class TestControl:
    def test_an_accepted_event_has_a_place_where_it_is_found(self, served: Served) -> None:
        answer = served.set_key(1)
        assert answer.status_code == 202
        body = answer.json()
        assert (body["status"], body["requested_by"], body["origin"]) == ("accepted", "local", "rest 127.0.0.1")
        found = served.http.get(answer.headers["location"]).json()
        own = {name: value for name, value in body.items() if name not in ("repeated", "note")}
        assert {**found, "accepted_at": ""} == {**own, "accepted_at": ""}
        assert event_of(served.state, body["id"]).value == {"key": "k", "value": 1}

    def test_a_key_makes_a_request_once(self, served: Served) -> None:
        first = served.set_key(5, headers={"Idempotency-Key": "key-5"}).json()
        again = served.set_key(5, headers={"Idempotency-Key": '"key-5"'})
        assert (again.status_code, again.json()["id"], again.json()["repeated"]) == (202, first["id"], True)
        other = served.set_key(6, headers={"Idempotency-Key": "key-5"})
        assert (other.status_code, other.json()["reason"]) == (409, "key_reused")

    @pytest.mark.parametrize(
        ("body", "status", "reason"),
        [
            ({"kind": "nonsense"}, 400, "unknown_kind"), ({"kind": "release"}, 400, "unknown_kind"),
            ({}, 400, "malformed"), ({"kind": 1}, 400, "malformed"),
            ({"kind": "pause", "target": "nobody"}, 400, "malformed"),
            ({"kind": "pause", "target": "source:q-in/\x00"}, 400, "malformed"),
            ({"kind": "pause", "priority": 1}, 400, "malformed"), ({"kind": "pause", "value": 1}, 422, "bad_value"),
            ({"kind": "pause", "delivery": "soon"}, 400, "malformed"),
            ({"kind": "pause", "expires_at": "tomorrow"}, 400, "malformed"),
            ({"kind": "pause", "expires_at": "2030-01-01T00:00:00"}, 400, "malformed"),
            ({"kind": "pause", "expires_at": "0001-01-01T00:00:00+14:00"}, 422, "expired"),
            ({"kind": "pause", "expires_at": "2001-01-01T00:00:00Z"}, 422, "expired"),
            ({"kind": "pause", "target": "source:nobody"}, 404, "unknown_target"),
            ({"kind": "pause", "target": "sink:q-out"}, 422, "bad_value"),
            ({"kind": "rate_limit", "target": "source:q-in", "value": {"rows_per_second": 0}}, 422, "bad_value"),
            ({"kind": "rate_limit", "target": "source:q-in", "value": {"rows": 5}}, 422, "bad_value"),
            ({"kind": "rate_limit", "target": "source:q-in", "value": {"rows_per_second": 10**400}}, 422, "bad_value"),
            ({"kind": "seek", "target": "source:q-in/c", "value": {"position": 1}}, 422, "bad_value"),
            ({"kind": "set_config", "value": {"key": "x", "value": "x" * 65_536}}, 422, "bad_value"),
            ({"kind": "set_config", "value": {"key": "x\x00", "value": 1}}, 422, "bad_value"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_done_is_refused(self, served: Served, body: Any, status: int, reason: str) -> None:
        answer = served.http.post(f"{JOB}/control", json=body)
        problem = answer.json()
        assert (answer.status_code, problem["status"], problem["reason"]) == (status, status, reason), problem
        assert answer.headers["content-type"] == "application/problem+json"
        assert all(problem[part] for part in ("detail", "operator", "kept", "do"))

    @pytest.mark.parametrize(
        ("content", "status"),
        [
            *((content, 400) for content in (b"", b"null", b"[]", b"\xff\xfe")),
            (b'{"kind": "pause", "kind": "resume"}', 400),
            (b'{"kind": "set_config", "value": {"key": "x", "value": NaN}}', 400),
            (b'{"kind": "set_config", "value": {"key": "x", "value": 1e999}}', 422),
            (b'{"kind": "set_config", "value": {"key": "x", "value": ' + b"9" * 10_000 + b"}}", 400),
            (b'{"kind": "set_config", "value": {"key": "x", "value": "\\ud800"}}', 422),
            (b'{"kind": "\\ud800"}', 400),
            (b'{"kind": "set_config", "value": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400),
            (b'{"kind": "set_config", "value": ' + b"[" * 100 + b"]" * 100 + b"}", 400),
            (b" " * 200_000, 413),
        ],
    )
    def test_bad_json_is_refused(self, served: Served, content: bytes, status: int) -> None:
        headers = {"Content-Type": "application/json"}
        assert served.http.post(f"{JOB}/control", content=content, headers=headers).status_code == status
        streamed = served.http.post(f"{JOB}/control", content=iter([content]), headers=headers)
        assert streamed.status_code == status, streamed.text

    @pytest.mark.parametrize("kind", ["text/plain", "", "application/json; charset=utf-16", "application/x-json"])
    def test_another_content_type_is_refused(self, served: Served, kind: str) -> None:
        answer = served.http.post(f"{JOB}/control", content=b'{"kind":"pause"}', headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["reason"]) == (415, "media_type")

    @pytest.mark.parametrize("key", ["", "x" * 201, "a\tb", '""'])
    def test_a_bad_key_is_refused(self, served: Served, key: str) -> None:
        assert served.set_key(1, headers={"Idempotency-Key": key}).status_code in (400, 422)

    def test_a_job_that_was_not_started_has_no_control(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        with ControlServer(str(tmp_path / "state")) as server:
            http = client(server, server.token)
            assert http.get("/v1/jobs").json() == {"jobs": []}
            answer = http.post("/v1/jobs/x/control", json={"kind": "pause"})
            assert (answer.status_code, answer.json()["reason"]) == (404, "no_job")
        assert list((tmp_path / "state").iterdir()) == []


class TestEvents:
    def test_pages_and_filters(self, own: Served) -> None:
        ids = [own.set_key(number).json()["id"] for number in range(5)]
        own.post("pause", "source:q-in")
        wanted: dict[str, Any] = {"limit": 2, "kind": "set_config"}
        first = own.http.get(f"{JOB}/control", params=wanted).json()
        second = own.http.get(f"{JOB}/control", params={**wanted, "limit": 9, "cursor": first["cursor"]}).json()
        assert [one["id"] for one in (*first["events"], *second["events"])] == ids[::-1]
        assert second["cursor"] is None
        both = own.http.get(f"{JOB}/control", params={"kind": ["pause", "drain"], "target": "source:q-in"}).json()
        assert [one["sequence"] for one in both["events"]] == [6]
        assert own.http.get(f"{JOB}/control", params={"kind": "pause", "status": "applied"}).json()["events"] == []

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ("cursor=x", 400), ("cursor=%00", 400), ("status=done", 400), ("kind=%ff", 200), ("limit=0", 422),
            ("limit=" + "9" * 5_000, 422), ("after=-1", 422), ("kinds=pause", 422), ("token=x", 422),
        ],
    )  # fmt: skip
    def test_bad_parameters_are_refused(self, served: Served, query: str, status: int) -> None:
        assert served.http.get(f"{JOB}/control?{query}").status_code == status

    def test_a_long_poll_ends_with_the_final_status(self, own: Served) -> None:
        answer = own.set_key(1)
        event, place = event_of(own.state, answer.json()["id"]), answer.headers["location"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(own.http.get, place, params={"wait": 50})
            own.state.step(event, "applied", "q", 3)
            own.state.step(event, "acknowledged", ms=20)
            found = waiting.result(20).json()
        assert (found["status"], found["applied"], found["final"]) == ("acknowledged", {"q": 3}, True)

    def test_a_long_poll_ends_with_its_time(self, served: Served) -> None:
        place = served.set_key(1).headers["location"]
        begun = time.monotonic()
        assert served.http.get(place, params={"wait": 0.3}).json()["status"] == "accepted"
        assert 0.25 < time.monotonic() - begun < 20
        assert served.http.get(place, params={"wait": 61}).status_code == 422
        assert served.http.get(f"{JOB}/control/none", params={"wait": 50}).status_code == 404

    def test_a_stream_has_each_state_and_continues_after_the_last(self, own: Served) -> None:
        first = event_of(own.state, own.set_key(1).json()["id"])
        seen: list[dict[str, Any]] = []
        ids: list[str] = []

        def follow(headers: dict[str, str], number: int) -> None:
            with own.http.stream("GET", f"{JOB}/control/stream", params={"after": 0}, headers=headers) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                for line in answer.iter_lines():
                    if line.startswith("id: "):
                        ids.append(line[4:])
                    if line.startswith("data: "):
                        seen.append(json.loads(line[6:]))
                        if len(seen) == number:
                            return

        reader = threading.Thread(target=follow, args=({}, 4))
        reader.start()
        until(lambda: len(seen) == 1, "the first event")
        own.state.step(first, "applied", "q", 2, ms=1)
        until(lambda: len(seen) == 2, "its next state")
        own.set_key(2)
        until(lambda: len(seen) == 3, "another event")
        own.state.step(first, "acknowledged", ms=2)
        reader.join(20)
        states = [(one["sequence"], one["status"]) for one in seen]
        assert states == [(1, "accepted"), (1, "applied"), (2, "accepted"), (1, "acknowledged")]
        seen.clear()
        third = own.set_key(3).json()["id"]
        follow({"Last-Event-ID": ids[-1]}, 2)
        assert third in [one["id"] for one in seen]
        assert own.http.get(f"{JOB}/control/stream", headers={"Last-Event-ID": "x"}).status_code == 400

    def test_waiting_requests_are_limited_and_end_with_the_server(self, tmp_path: Path) -> None:
        with serving(State(tmp_path / "state"), limits=Limits(waiting_each=2)) as own, ExitStack() as streams:
            place = own.set_key(1).headers["location"]
            stream = f"{JOB}/control/stream"
            opened = [streams.enter_context(own.http.stream("GET", stream)) for _ in range(2)]
            for refused in (own.http.get(place, params={"wait": 50}), own.http.get(stream)):
                problem = refused.json()
                assert (refused.status_code, problem["reason"], refused.headers["retry-after"]) == (429, "waiting", "5")
            assert own.http.get(place).status_code == 200
            begun = time.monotonic()
            own.server.stop()
            assert all(list(one.iter_lines()) for one in opened)
            assert time.monotonic() - begun < 10

    def test_a_long_poll_ends_when_the_server_stops(self, own: Served) -> None:
        place = own.set_key(1).headers["location"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(own.http.get, place, params={"wait": 50})
            jobs = own.server._jobs
            assert jobs is not None
            until(lambda: jobs.all[0].watcher._waiting, "it waits")
            own.server.stop()
            assert waiting.result(20).json()["status"] == "accepted"


class TestJob:
    def test_shows_the_job(self, served: Served) -> None:
        (one,) = served.http.get("/v1/jobs").json()["jobs"]
        assert (one["job"], one["running"], [query["uid"] for query in one["queries"]]) == ("orders", True, ["q", "r"])
        for name in ("orders", one["job_id"]):
            assert served.http.get(f"/v1/jobs/{name}").json()["incarnation"] == 1
        for page in ("", "/epochs", "/finished", "/checkpoints", "/incidents", "/control", "/kinds", "/config?query=q"):
            assert served.http.get(f"/v1/jobs/none{page}").status_code == 404
        assert served.http.get("/ready").json() == {"status": "ready", "jobs": ["orders"]}

    def test_shows_its_tables_in_pages(self, own: Served) -> None:
        for number in range(5):
            own.state.committed("q", number, [])
            own.state.committed("r", number, [])
        first = own.http.get(f"{JOB}/epochs", params={"query": "q", "limit": 3}).json()
        second = own.http.get(f"{JOB}/epochs", params={"query": "q", "limit": 3, "cursor": first["cursor"]}).json()
        assert [row["epoch"] for row in (*first["rows"], *second["rows"])] == [4, 3, 2, 1, 0]
        assert second["cursor"] is None and "offsets" not in first["rows"][0]
        for page in ("epochs", "finished", "checkpoints", "incidents"):
            assert own.http.get(f"{JOB}/{page}", params={"cursor": "x"}).status_code == 400
        assert own.http.get(f"{JOB}/incidents", params={"cursor": first["cursor"]}).status_code == 400

    def test_l2_labels_are_combined_with_and(self, own: Served) -> None:
        for number, labels in enumerate(({"type": "A", "region": "eu"}, {"type": "A"}, {"region": "eu"})):
            own.state.writer.append(replace(incident(number, now() - timedelta(days=number * 20)), labels=labels))

        def found(**parameters: Any) -> list[str]:
            rows = own.http.get(f"{JOB}/incidents", params=parameters).json()["rows"]
            return [row["incident_id"] for row in rows]

        assert found() == ["i0", "i1", "i2"]
        assert found(label=["type=A", "region=eu"]) == ["i0"]
        assert found(label="region=eu", operator="q") == ["i0", "i2"]
        assert found(label="region=eu", operator="r") == []
        assert own.http.get(f"{JOB}/incidents", params={"label": "x"}).status_code == 422

    def test_shows_the_configuration_of_an_epoch(self, own: Served) -> None:
        events = [event_of(own.state, own.set_key(number).json()["id"]) for number in range(2)]
        own.state.epoch("q", 0, Configuration().after(events[:1]))
        own.state.epoch("q", 1, Configuration().after(events))

        def config(**parameters: Any) -> httpx.Response:
            return own.http.get(f"{JOB}/config", params={"query": "q", **parameters})

        assert (config(epoch=0).json()["config"], config(epoch=1).json()["config"]) == ({"k": 0}, {"k": 1})
        assert (config().json()["epoch"], config().json()["sequence"]) == (1, 2)
        wrong = config(epoch=7), config(query="x"), config(epoch=-1)
        assert [one.status_code for one in wrong] == [404, 404, 422]
        own.state.epoch("q", 2, Configuration().after([event_of(own.state, own.set_key(2).json()["id"])]))
        folder = own.state.folder / "queries" / "q" / "checkpoint" / "control"
        max(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns).unlink()
        broken = config()
        assert (broken.status_code, broken.json()["reason"]) == (503, "state")

    def test_lists_the_kinds(self, served: Served) -> None:
        kinds = {one["name"]: one for one in served.http.get(f"{JOB}/kinds").json()["kinds"]}
        assert "release" not in kinds and kinds["rate_limit"]["value_schema"]["properties"]["rows_per_second"]

    def test_several_jobs_are_told_apart(self, tmp_path: Path) -> None:
        states = [State(tmp_path / name, job) for name, job in (("a", "one"), ("b", "two"), ("c", "two"))]
        with ControlServer([state.path for state in states]) as server:
            http = httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {server.token}"})
            jobs = http.get("/v1/jobs").json()["jobs"]
            assert [one["job"] for one in jobs] == ["one", "two", "two"]
            assert http.post("/v1/jobs/one/control", json={"kind": "pause"}).status_code == 202
            twice = http.post("/v1/jobs/two/control", json={"kind": "pause"})
            assert (twice.status_code, twice.json()["reason"]) == (409, "ambiguous")
            assert http.post(f"/v1/jobs/{jobs[2]['job_id']}/control", json={"kind": "pause"}).status_code == 202
        assert [len(state.ledger.table(ControlEventRow).rows()) for state in states] == [1, 0, 1]


class TestServer:
    def test_uses_the_service_of_the_driver(self, tmp_path: Path) -> None:
        state = State(tmp_path / "state")
        service = ControlService(Ledger(state.path), queries=["late"])
        with serving(state, services={state.path: service}) as own:
            assert own.post("pause", "query:late").status_code == 202
        assert service.submit(Request("resume", "query:late")).event.sequence == 2
        service.close()

    def test_a_full_queue_is_429(self, tmp_path: Path) -> None:
        state = State(tmp_path / "state")
        service = ControlService(Ledger(state.path), capacity=1)
        with serving(state, services={state.path: service}) as own, ThreadPoolExecutor(8) as pool:
            with service.log._lock:
                waiting = [pool.submit(own.set_key, number) for number in range(5)]
                until(lambda: sum(one.done() for one in waiting) >= 3, "some are refused")
            answers = [one.result() for one in waiting]
        busy = [one for one in answers if one.status_code == 429]
        assert len(busy) == 3 and all(one.json()["reason"] == "busy" and one.headers["retry-after"] for one in busy)
        assert len(state.ledger.table(ControlEventRow).rows()) == 2
        service.close()

    def test_an_address_in_use_is_an_error(self, served: Served) -> None:
        port = int(served.server.url.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match="cannot be bound"):
            ControlServer(served.state.path, port=port).start()

    def test_other_addresses_need_tls(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens"
        create(file, "ann")
        for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", ""):
            with pytest.raises(ConfigurationError, match="other machines"):
                ControlServer("state", host=host, tokens=file)
        assert ControlServer("state", host="0.0.0.0", insecure=True).token

    def test_a_burst_is_refused_beyond_the_limit_and_ordered_below(self, tmp_path: Path) -> None:
        state = State(tmp_path / "state")
        with serving(state, limits=Limits(rate=2, burst=100, refusal_seconds=0)) as own:

            def ask(number: int) -> list[tuple[int, int]]:
                answers = []
                with client(own.server, own.token) as http:
                    for value in range(30):
                        body = {"kind": "set_config", "value": {"key": f"k{number}", "value": value}}
                        answer = http.post(f"{JOB}/control", json=body)
                        assert answer.status_code in (202, 429)
                        if answer.status_code == 202:
                            answers.append((answer.json()["sequence"], value))
                        else:
                            assert int(answer.headers["retry-after"]) >= 1
                return answers

            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(ask, range(8)))
        assert all(one == sorted(one) for one in found)
        sequences = sorted(sequence for one in found for sequence, _ in one)
        assert 100 <= len(sequences) < 240
        rows = state.ledger.table(ControlEventRow).rows()
        assert sequences == sorted(row.sequence for row in rows) == list(range(1, len(rows) + 1))
        assert ControlLog(Ledger(state.path)).configuration().user() == {
            f"k{number}": one[-1][1] for number, one in enumerate(found) if one
        }
        assert KnownJob.read(state.ledger).name == "orders"
        assert datetime.now(timezone.utc) > rows[0].at
