"""What a gateway answers: receipts, and refusals as RFC 9457 problems."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from spark_ext.errors import SparkExtError
from spark_ext.ingest.identity import Answer
from spark_ext.ingest.records import Receipt
from spark_ext.ingest.signatures import Rejected
from spark_ext.ingest.store import Draining, Forgotten, Full, Unavailable
from spark_ext.server.guard import HEADERS, NO_CONTENT
from spark_ext.server.problems import MEDIA_TYPE, Problem

KEPT: Final = "nothing of the request was stored"
PERHAPS: Final = "the events of the request may have been stored; with an identity they are not in the table twice"
AGAIN: Final = 5  # when to try again if nothing better is known, s

WANT_200: Final = frozenset({"slack", "shopify"})
"""Schemes whose senders take 200 alone for an acceptance, or say so."""

_REASONS: Final[Mapping[int, tuple[str, str]]] = {
    400: ("malformed", "correct the request"),
    401: ("unauthorized", "sign the request with the secret of the inbox"),
    408: ("late", "send the body at once"),
    413: ("too_large", "send fewer events in a request, or raise max_body of the inbox"),
    415: ("media_type", "send a type and an encoding that the inbox supports"),
    422: ("unfit", "correct the event, or the schema of the inbox"),
}
_MORE: Final = {401: {"WWW-Authenticate": "Signature"}, 413: {"Connection": "close"}}


class Refused(Exception):
    """A refusal of a request."""

    def __init__(
        self, status: int, reason: str, what: str, do: str, headers: Mapping[str, str] | None = None, kept: str = KEPT
    ) -> None:
        super().__init__(what)
        self.status, self.reason, self.do, self.headers, self.kept = status, reason, do, headers, kept

    @classmethod
    def of(cls, error: Exception, kept: str = KEPT) -> Refused:
        """The refusal that an error stands for; what is not known is in the log of the gateway alone."""
        match error:
            case Refused():
                return error
            case Problem():  # of what is shared with the server of control events
                return cls(error.status, error.reason, error.what, error.do, error.headers)
            case Rejected():
                reason, do = _REASONS.get(error.status, ("refused", "see the detail"))
                return cls(error.status, reason, error.reason, do, _MORE.get(error.status))
            case Full():
                what = "the gateway is full: it holds as many events as max_bytes allows that the job has not committed"
                do = f"send it after {error.retry_after} s; check that the job runs, or raise max_bytes of the inbox"
                return cls(429, "full", what, do, {"Retry-After": str(error.retry_after)})
            case Forgotten():
                do = "continue behind the newest number that GET .../producers/PRODUCER shows as acknowledged"
                return cls(409, "forgotten", str(error), do)
            case Draining():
                return cls.for_now("draining", "the gateway accepts no further events: it is being stopped", kept)
            case Unavailable():
                return cls.for_now("unavailable", "events cannot be kept at the moment", kept)
            case SparkExtError():
                return cls.for_now(error.code.lower(), error.what, kept)
            case _:
                what, do = "the request failed in the gateway", "see the gateway's log, and report it"
                return cls(500, "internal", what, do, kept=PERHAPS)

    @classmethod
    def for_now(cls, reason: str, what: str, kept: str) -> Refused:
        """A refusal that is over soon, or that another gateway would not make."""
        do = "send the request again, to this gateway later or to another one"
        return cls(503, reason, what, do, {"Retry-After": str(AGAIN)}, kept)

    def problem(self, operator: str) -> Problem:
        """As it is told."""
        return Problem(
            self.status, self.reason, str(self), self.do, operator=operator, kept=self.kept, headers=self.headers
        )


class Response:
    """A response, ready to be sent."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
        self.status, self.body = status, body
        self.headers = [*headers, (b"content-length", str(len(body)).encode())]

    async def send(self, send: Any) -> None:
        """Send it by the interface of ASGI."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})

    @classmethod
    def of_problem(cls, problem: Problem) -> Response:
        """That of a refusal."""
        given = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        return cls(problem.status, [*_JSON_PROBLEM, *given], problem.content())

    @classmethod
    def of_json(cls, content: bytes) -> Response:
        """That of a question."""
        return cls(200, [(b"content-type", b"application/json"), *HEADERS], content)

    @classmethod
    def of_handshake(cls, answer: Answer) -> Response:
        """That of a request by which a sender tries an address."""
        given = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers.items()]
        return cls(answer.status, [*HEADERS, NO_CONTENT, *given], answer.body)

    @classmethod
    def of_receipt(cls, receipt: Receipt, scheme: str) -> Response:
        """That of events that were accepted."""
        done = receipt.level == "table" or scheme in WANT_200
        headers = [
            (b"spark-ext-level", receipt.level.encode()),
            (b"spark-ext-repeat", b"%d" % receipt.repeats),
            (b"spark-ext-exactly-once", b"true" if receipt.exactly_once else b"false"),
            (b"spark-ext-token", receipt.token.encode()),
        ]
        # Without a body: it would be written to the socket by itself, which takes as long as all else here.
        return cls(HTTPStatus.OK if done else HTTPStatus.ACCEPTED, headers)


_JSON_PROBLEM: Final = ((b"content-type", MEDIA_TYPE.encode()), *HEADERS, NO_CONTENT)


def told(receipt: Receipt, more: str = "") -> str:
    """A receipt as JSON."""
    once = "true" if receipt.exactly_once else "false"
    return (
        f'{{{more}"level":"{receipt.level}","events":{receipt.events},"repeats":{receipt.repeats},'
        f'"exactly_once":{once},"token":"{receipt.token}"}}'
    )
