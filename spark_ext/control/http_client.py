"""The client of the REST server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from spark_ext.clients.library import load
from spark_ext.control.client import keyed, no_event, retrying
from spark_ext.control.epoch_configuration import EpochConfiguration
from spark_ext.control.event_state import EventState
from spark_ext.control.history import LIMIT, Filter, Page
from spark_ext.control.requests import ControlRefused, Refusal, Request
from spark_ext.errors import NOTHING_DONE, ConfigurationError, SparkExtError, TransientError
from spark_ext.masking import logger, remember
from spark_ext.model.configuration import Configuration

if TYPE_CHECKING:
    from types import TracebackType

log = logger("spark_ext.control")

POLL: Final = 30  # longest time of one long poll, s


class ControlClient:
    """A client of a REST server. For one thread at a time.

    `job` is a name or id; None: the only one that the server has. `timeout` is for one request, s, beside the time that
    it waits for an event.
    """

    def __init__(
        self, url: str, token: str, job: str | None = None, *, verify: str | None = None, timeout: float = 30.0
    ) -> None:
        remember(token)
        self._httpx = load("httpx", "server", "the client of control events")
        self._url, self._name, self._timeout = url.rstrip("/"), job, timeout
        context: Any = True
        if verify is not None:
            import ssl

            context = ssl.create_default_context(cafile=verify)
        self._http: Any = self._httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=timeout,
            verify=context,
            trust_env=False,
        )

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs that the server has, as its page `/v1/jobs` shows them."""
        found: list[dict[str, Any]] = self._get("/v1/jobs")["jobs"]
        return found

    def kinds(self) -> list[dict[str, Any]]:
        """The kinds of events that the server takes."""
        found: list[dict[str, Any]] = self._get(f"{self._job()}/kinds")["kinds"]
        return found

    def summary(self) -> dict[str, Any]:
        """The job, as its page shows it: its queries with their sources and sinks among others."""
        job = self._job().removeprefix("/v1/jobs/")
        found = [one for one in self.jobs() if unquote(job) in (one["job_id"], one["job"])]
        if not found:
            raise ControlRefused.because(
                Refusal.NO_JOB, "the server has no such job", f"server {self._url}", "see /v1/jobs"
            )
        return found[0]

    def send(self, request: Request) -> EventState:
        """See `Client`. The server says who asked, by the token."""
        full = keyed(request)
        body: dict[str, Any] = {"kind": full.kind, "target": full.target, "delivery": full.delivery}
        if full.value is not None:
            body["value"] = full.value
        if full.expires_at is not None:
            body["expires_at"] = full.expires_at.isoformat()
        try:
            content = json.dumps(body, allow_nan=False).encode()
        except (ValueError, TypeError, RecursionError) as problem:
            raise ControlRefused.because(
                Refusal.BAD_VALUE, f"the value is not JSON: {problem}", f"{full.kind} for {full.target}", "correct it"
            ) from None
        headers = {"Idempotency-Key": full.idempotency_key, "Content-Type": "application/json"}
        path = f"{self._job()}/control"
        return EventState.from_json(retrying()(self._call, "POST", path, content=content, headers=headers))

    def event(self, event_id: str) -> EventState:
        """See `Client`."""
        return self._event(event_id, 0)

    def wait(self, event_id: str, timeout: float | None = None) -> EventState:
        """See `Client`."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = POLL if until is None else max(0.0, min(POLL, until - time.monotonic()))
            found = self._event(event_id, left)
            if found.final or (until is not None and time.monotonic() >= until):
                return found

    def _event(self, event_id: str, wait: float) -> EventState:
        path = f"{self._job()}/control/{quote(event_id, safe='')}"
        parameters = {"wait": round(wait, 3)} if wait else {}
        try:
            return EventState.from_json(self._get(path, parameters, self._timeout + wait))
        except _NotFound:
            raise no_event(self._url, event_id) from None

    def events(
        self, wanted: Filter | None = None, *, after: int | None = None, cursor: str | None = None, limit: int = LIMIT
    ) -> Page:
        """See `Client`."""
        wanted = wanted or Filter()
        given: dict[str, Any] = {
            "kind": list(wanted.kind),
            "status": list(wanted.status),
            "target": list(wanted.target),
            "requested_by": list(wanted.requested_by),
            "after": after,
            "cursor": cursor,
            "limit": limit,
        }
        found = self._get(f"{self._job()}/control", {name: one for name, one in given.items() if one not in (None, [])})
        return Page(tuple(EventState.from_json(one) for one in found["events"]), found["cursor"])

    def config(self, query: str, epoch: int | None = None) -> EpochConfiguration:
        """See `Client`."""
        parameters: dict[str, Any] = {"query": query}
        if epoch is not None:
            parameters["epoch"] = epoch
        found = self._get(f"{self._job()}/config", parameters)
        return EpochConfiguration(found["query"], found["epoch"], Configuration.from_json(found), found["committed"])

    def follow(self, after: int | None = None) -> Iterator[EventState]:
        """See `Client`. A stream that is interrupted is continued: then some states may come twice.

        While the server does not answer there is a warning in the log.
        """
        mark, silent = "", False
        path = f"{self._job()}/control/stream"
        while True:
            headers = {"Last-Event-ID": mark} if mark else {}
            parameters = {} if mark or after is None else {"after": after}
            limits = self._httpx.Timeout(self._timeout, read=60.0)
            try:
                with self._http.stream("GET", path, params=parameters, headers=headers, timeout=limits) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        raise self._problem(answer)
                    if silent:
                        log.warning("server %s answers again", self._url)
                    silent = False
                    for sent, data in _sent(answer.iter_lines()):
                        mark = sent
                        yield EventState.from_json(json.loads(data))
            except (self._httpx.TransportError, TransientError) as problem:
                if not silent:
                    what = f"{type(problem).__name__}: {problem}".partition("\n")[0]
                    log.warning("could not reach server %s (%s); will retry", self._url, what)
                silent = True
            time.sleep(1.0)

    def close(self) -> None:
        """See `Client`: close the connections."""
        self._http.close()

    # -- HTTP ---------------------------------------------------------------------------------------------------------

    def _job(self) -> str:
        if self._name is None:
            names = [one["job_id"] for one in self.jobs()]
            if len(names) != 1:
                raise ControlRefused.because(
                    Refusal.NO_JOB, f"the server has {len(names)} jobs", f"server {self._url}", "name the job"
                )
            self._name = names[0]
        return f"/v1/jobs/{quote(self._name, safe='')}"

    def _get(self, path: str, parameters: Mapping[str, Any] | None = None, timeout: float | None = None) -> Any:
        return retrying()(self._call, "GET", path, params=dict(parameters or {}), timeout=timeout or self._timeout)

    def _call(self, method: str, path: str, **more: Any) -> Any:
        try:
            answer = self._http.request(method, path, **more)
        except self._httpx.HTTPError as problem:
            raise TransientError(
                f"the server cannot be reached: {type(problem).__name__}: {problem}",
                operator=f"server {self._url}",
                kept="what was accepted before; whether this request was is not known, and it may be repeated",
                do="check the address, and that the server runs",
            ) from None
        if answer.status_code >= 300:
            raise self._problem(answer)
        return answer.json()

    def _problem(self, answer: Any) -> SparkExtError:
        """The error that an answer stands for."""
        try:
            body = answer.json()
            what, reason = str(body["detail"]), str(body["reason"])
            operator, kept, do = str(body["operator"]), str(body["kept"]), str(body["do"])
        except (ValueError, KeyError, TypeError):
            what, reason = f"the answer {answer.status_code} is not one of this API", ""
            operator, kept, do = f"server {self._url}", NOTHING_DONE, "check the address"
        if answer.status_code >= 500:
            return TransientError(what, operator=operator, kept=kept, do=do)
        refusal = _REFUSALS.get(reason)
        if reason == "not_found":
            found: ControlRefused = _NotFound(what, operator=operator, kept=kept, do=do)
        elif refusal is None:
            return ConfigurationError(what, operator=operator, kept=kept, do=do)
        else:
            found = ControlRefused(what, operator=operator, kept=kept, do=do)
        found.refusal = refusal or Refusal.UNKNOWN_TARGET
        found.retry_after = _seconds(answer.headers.get("retry-after", ""))
        return found


class _NotFound(ControlRefused):
    """The page, event or epoch does not exist."""


_REFUSALS: Final[Mapping[str, Refusal]] = {
    **{refusal.value: refusal for refusal in Refusal},
    "rate": Refusal.BUSY,
    "waiting": Refusal.BUSY,
    "parameter": Refusal.MALFORMED,
    "too_large": Refusal.BAD_VALUE,
}


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _sent(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The messages of a stream of server-sent events: id and data."""
    mark, data = "", []
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            mark = value
        elif name == "data":
            data.append(value)
        elif not line:
            if data:
                yield mark, "\n".join(data)
            data = []
