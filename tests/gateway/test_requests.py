"""Requests of all kinds, made by schemathesis: whatever is sent, a gateway answers by the book, or stores nothing."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from tests.gateway.served import NAME, serving

PATH = f"/v1/inboxes/{NAME}"
TEXT: Any = {"type": "string", "maxLength": 20}
HEADERS = ("Idempotency-Key", "X-Producer", "X-Sequence", "webhook-id", "ce-id", "ce-source", "ce-specversion")
BODY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
KINDS = ("json", "x-ndjson", "cloudevents+json", "cloudevents-batch+json", "vnd.apache.arrow.stream", "octet-stream")
POSITIVE: Any = GenerationMode.POSITIVE


def operation(method: str, where: str, *names: str) -> tuple[str, dict[str, Any]]:
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    parameters += [{"name": name, "in": "header", "required": False, "schema": TEXT} for name in HEADERS]
    body = {"requestBody": BODY} if method == "post" else {}
    return where, {method: {"parameters": parameters, "responses": {}, **body}}


PATHS = dict((
    operation("post", PATH),
    operation("post", f"{PATH}/{{rest}}", "rest"),
    operation("post", f"{PATH}/t/{{token}}", "token"),
    operation("options", "/v1/{rest}", "rest"),
    operation("get", f"{PATH}/producers/{{name}}", "name"),
    operation("get", f"{PATH}/receipts/{{name}}", "name"),
    operation("delete", "/health"),
))  # fmt: skip


def test_whatever_is_sent_is_stored_or_refused_by_name(tmp_path: Path) -> None:
    raw = {"openapi": "3.1.0", "info": {"title": "a gateway", "version": "1"}, "paths": PATHS}
    description, seen = schemathesis.openapi.from_dict(raw), Counter[int]()
    with serving(tmp_path, about={"max_body": 1_000}, limits={"refused_burst": 10**6}) as own:
        description.config.update(base_url=f"http://127.0.0.1:{own.port}")

        def ask(case: "schemathesis.Case[Any]", kind: str, *, packed: bool) -> None:
            before = own.accepted
            headers = {"Authorization": f"Bearer {own.server.token}", "Content-Type": f"application/{kind}"}
            if packed:
                headers["Content-Encoding"] = "gzip"
                case.body = gzip.compress(case.body) if isinstance(case.body, bytes) else case.body
            answer = case.call(headers=headers)
            seen[answer.status_code] += 1
            if answer.status_code >= 300:
                assert answer.status_code < 500 and own.accepted == before
                assert answer.headers["content-type"] == ["application/problem+json"]
                problem = answer.json()
                assert problem["status"] == answer.status_code and problem["reason"] and problem["do"]

        run = settings(
            max_examples=6, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        for path, methods in PATHS.items():
            for method in methods:
                cases = description[path][method.upper()].as_strategy(generation_mode=POSITIVE)
                run(given(case=cases, kind=st.sampled_from(KINDS), packed=st.booleans())(ask))()
    assert min(seen[status] for status in (200, 202, 400, 401, 404, 405)) > 0, seen
