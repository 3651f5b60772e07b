"""`/metrics` of the REST server: behind the same guard as all that reads, from the job in the server's process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_ext.server.tokens import create
from tests.control.states import State
from tests.ledger.rows import epoch
from tests.metrics.jobs import live, measured
from tests.server.served import Served, client, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    metrics = measured(epoch(0), epoch(1), job="orders", shown=live("orders"))
    with serving(State(tmp_path_factory.mktemp("metrics") / "state"), metrics=lambda: metrics) as found:
        yield found


def test_it_answers_in_the_format_that_is_asked_for(served: Served) -> None:
    answer = served.http.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert [sample.value for sample in families["spark_ext_epochs"].samples] == [2]
    answer = served.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert answer.headers["cache-control"] == "no-store"


def test_it_does_not_change_anything_and_has_no_parameters(served: Served) -> None:
    assert served.http.post("/metrics").status_code == 405
    assert served.http.get("/metrics", params={"job": "x"}).status_code == 422
    assert served.http.get("/metrics", headers={"Host": "evil.example"}).status_code == 403


def test_a_token_without_the_scope_read_is_refused(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    reads, changes = create(tokens, "prometheus", ["read"]), create(tokens, "robot", ["control"])
    metrics = measured(epoch(0))
    with serving(State(tmp_path / "state"), tokens=tokens, metrics=lambda: metrics) as served:
        for token, status in ((reads, 200), (changes, 403)):
            assert client(served.server, token).get("/metrics").status_code == status


def test_a_server_without_a_measured_job_says_what_to_do(tmp_path: Path) -> None:
    with serving(State(tmp_path / "state")) as served:
        answer = served.http.get("/metrics")
        assert answer.status_code == 404 and answer.json()["reason"] == "no_metrics"
        assert "metrics=True" in answer.json()["do"]
