"""Requests made from the served description: whatever is sent, the answer is a documented one, and no failure."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from spark_ext.model.control import Target
from spark_ext.model.control_kinds import Kind, kinds
from spark_ext.server.limits import Limits
from tests.control.states import State
from tests.server.served import Served, serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

MODES: Any = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)

EXAMPLES = {"get": 5, "post": 30}  # requests per route, good and bad ones each


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = Limits(rate=1e6, burst=10**6, change_rate=1e6, change_burst=10**6, refused_rate=1e6, refused_burst=10**6)
    state = State(tmp_path_factory.mktemp("description") / "state")
    state.epoch("q", 0, None)
    state.committed("q", 0, [])
    with serving(state, limits=limits) as found:
        yield found


@pytest.fixture(scope="module")
def description(served: Served) -> schemathesis.BaseSchema:
    raw = served.http.get("/openapi.json").json()
    # Else no request would be about a job or query that there is.
    for method in (method for methods in raw["paths"].values() for method in methods.values()):
        for parameter in method.get("parameters", ()):
            if parameter["name"] in ("job", "query"):
                parameter["schema"] = {"enum": {"job": ["orders"], "query": ["q", "none"]}[parameter["name"]]}
    found = schemathesis.openapi.from_dict(raw)
    found.config.update(base_url=served.server.url)
    return found


def test_the_description_is_of_version_3_1_and_has_all_kinds(served: Served) -> None:
    raw = served.http.get("/openapi.json").json()
    assert raw["openapi"].startswith("3.1")
    body = raw["components"]["schemas"]["ControlRequest"]
    public = {kind.name for kind in kinds().values() if kind.public}
    assert body["discriminator"]["mapping"].keys() == public
    assert raw["paths"]["/health"]["get"]["security"] == [] and raw["security"] == [{"bearer": []}]
    for path, methods in raw["paths"].items():
        for method in methods.values():
            documented = set(method["responses"])
            assert {"403", "405", "422", "429"} <= documented
            assert path == "/health" or {"400", "401", "404", "503"} <= documented
    assert {"202", "409", "413", "415"} <= set(raw["paths"]["/v1/jobs/{job}/control"]["post"]["responses"])


@pytest.mark.parametrize("kind", [kind for kind in kinds().values() if kind.public], ids=lambda kind: kind.name)
def test_the_examples_of_all_kinds_conform_to_it(served: Served, kind: Kind) -> None:
    raw = served.http.get("/openapi.json").json()
    schema = {**raw["components"]["schemas"]["ControlRequest"], "components": raw["components"]}
    forms = {"source": "source:q-in", "channel": "source:q-in/c", "sink": "sink:q-out", "query": "query:q"}
    for scope in kind.scopes:
        body = {"kind": kind.name, "target": forms.get(scope.value, "job"), "value": kind.example}
        assert str(Target.parse(body["target"])) == body["target"]
        assert Draft202012Validator(schema).is_valid(body)
        assert not Draft202012Validator(schema).is_valid({**body, "target": "nobody"})


@pytest.mark.slow(12, "requests of many kinds to every route, made by schemathesis")
@pytest.mark.parametrize("with_token", [True, False], ids=["token", "no_token"])
def test_no_request_is_a_failure_or_has_an_undocumented_answer(
    served: Served, description: schemathesis.BaseSchema, with_token: bool
) -> None:
    headers = {"Authorization": f"Bearer {served.token}"} if with_token else {}
    seen: Counter[int] = Counter()
    paths = served.http.get("/openapi.json").json()["paths"]
    for path, method in ((path, method) for path, methods in paths.items() for method in methods):
        if path.endswith(("/stream", "/events")):
            continue  # it does not end; see the test of streams
        operation = description[path][method.upper()]
        for mode in MODES:
            if mode is GenerationMode.NEGATIVE and path in ("/health", "/ready", "/v1/jobs"):
                continue  # there is nothing that could be wrong

            @settings(
                max_examples=EXAMPLES[method], deadline=None, database=None, derandomize=True,
                phases=[Phase.generate], suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: "schemathesis.Case[Any]") -> None:
                answer = case.call(headers=headers)
                case.validate_response(answer, checks=CHECKS)
                seen[answer.status_code] += 1

            ask()
    if with_token:
        assert min(seen[status] for status in (200, 202, 400, 422)) > 0, seen
    else:
        # Of health, and of requests that no server takes.
        assert seen.keys() <= {200, 400, 401, 403} and seen[401] > 50 and seen[200] <= EXAMPLES["get"], seen
