"""Errors of the server as RFC 9457 problems, with this project's parts: what, operator, kept, do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from spark_ext.control.requests import ControlRefused
from spark_ext.errors import SparkExtError
from spark_ext.masking import mask
from spark_ext.server.limits import retry_after
from spark_ext.server.tokens import hide

MEDIA_TYPE: Final = "application/problem+json"
NOTHING: Final = "the job continues as it was; nothing was accepted"  # what is kept when a request is refused


class ProblemBody(BaseModel):
    """An RFC 9457 problem."""

    model_config = ConfigDict(title="Problem")

    type: str = Field(description="A URN that ends in the reason.")
    title: str = Field(description="The status in words.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong, one sentence.")
    reason: str = Field(description="Stable name of the reason, such as unknown_target or busy.")
    operator: str = Field(description="The job and the target concerned.")
    kept: str = Field(description="What was not affected.")
    do: str = Field(description="What to do next.")


class Problem(Exception):
    """A request was refused."""

    def __init__(
        self,
        status: int,
        reason: str,
        what: str,
        do: str,
        *,
        operator: str = "the server of control events",
        kept: str = NOTHING,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what)
        self.status, self.reason = status, reason
        self.what, self.operator, self.kept, self.do = (_shown(text) for text in (what, operator, kept, do))
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, problem: SparkExtError) -> Problem:
        """The problem that stands for an error: a refusal has its own status, all others are 503."""
        if not isinstance(problem, ControlRefused):
            found = cls(
                503, problem.code.lower(), problem.what, problem.do, operator=problem.operator, kept=problem.kept
            )
            found.headers["Retry-After"] = "5"
            return found
        found = cls(
            problem.refusal.status,
            str(problem.refusal),
            problem.what,
            problem.do,
            operator=problem.operator,
            kept=problem.kept,
        )
        if found.status == 429:
            found.headers["Retry-After"] = retry_after(problem.retry_after)
        return found

    def response(self) -> Response:
        """The HTTP response."""
        return Response(self.content(), self.status, self.headers, MEDIA_TYPE)

    def content(self) -> bytes:
        """The body of the response."""
        return json.dumps(self.body(), ensure_ascii=False).encode()

    def body(self) -> dict[str, Any]:
        """Its JSON."""
        return {
            "type": f"urn:spark-ext:problem:{self.reason}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.what,
            "reason": self.reason,
            "operator": self.operator,
            "kept": self.kept,
            "do": self.do,
        }


def _shown(text: str) -> str:
    """On one line, without secrets, as valid UTF-8."""
    return " ".join(hide(mask(text)).encode("utf-8", "replace").decode().split())


DESCRIPTIONS: Final[Mapping[int, str]] = {
    400: "The request is malformed, or the kind of event is unknown.",
    401: "The bearer token is missing or invalid.",
    403: "The token does not allow this, or Host or Origin is foreign.",
    404: "The job, target, event, epoch or page does not exist.",
    405: "The method is not allowed.",
    409: "The idempotency key belongs to another request; or the job or query has finished, or does not run.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "A value or parameter is invalid.",
    429: "The rate limit is exceeded; Retry-After says when to retry.",
    500: "Internal error; see the server log.",
    503: "The state directory cannot be read or written at the moment.",
}
"""For the description of the API."""


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses of a route, for FastAPI."""
    always = (400, 401, 403, 404, 405, 422, 429, 503)
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*always, *statuses}):
        found[status] = {
            "description": DESCRIPTIONS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found
