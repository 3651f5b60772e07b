"""Clients that change the job of `control_job`: through its server while that answers, else by the ledger itself.

Each request has an idempotency key, and is repeated until there is an answer, which is kept for the comparison.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from spark_ext.control.client import LocalClient
from spark_ext.control.event_state import EventState
from spark_ext.control.http_client import ControlClient
from spark_ext.control.requests import ControlRefused, Refusal, Request
from spark_ext.errors import TransientError

PAUSE = 0.4  # seconds between two requests of a client, on average
CHANNELS = ("a-in/0", "a-in/1", "a-in/2", "b-in/0", "b-in/1")
SOURCES = ("a-in", "b-in", *CHANNELS)
PAUSED = ("query:a", "query:b", "source:a-in", *(f"source:{name}" for name in CHANNELS))  # what is paused at times
EVERYWHERE = ("job", "query:a", "query:b")

# How often a client sends what.
WEIGHTS = {
    "config": 16, "aligned": 1, "expiring": 4, "rate_limit": 4, "sample": 2, "pause": 2, "resume": 8, "seek": 4,
    "trigger_interval": 2, "broadcast": 8, "driver": 4,
}  # fmt: skip
_SOURCES = tuple(f"source:{name}" for name in SOURCES)
# Targets and values of some kinds.
CHOICES: dict[str, tuple[Sequence[str], Sequence[Any]]] = {
    "rate_limit": (_SOURCES, ({"rows_per_epoch": 7}, {"rows_per_epoch": 40}, {"rows_per_second": 60}, None, None)),
    "sample": (_SOURCES, ({"fraction": 0.5}, {"fraction": 0.1}, None, None)),
    "pause": (PAUSED, (None,)),
    "resume": (PAUSED, (None,)),
    "trigger_interval": (EVERYWHERE, ({"interval": 0}, {"interval": "200 ms"}, None)),
}

# Requests that are refused, and why.
BAD: tuple[tuple[Request, Refusal], ...] = (
    (Request("dance"), Refusal.UNKNOWN_KIND),
    (Request("pause", "query:nobody"), Refusal.UNKNOWN_TARGET),
    (Request("rate_limit", "source:a-in", {"rows_per_second": 0}), Refusal.BAD_VALUE),
    (Request("set_config", "job", {"key": ""}), Refusal.BAD_VALUE),
    (Request("seek", "source:a-in/0", {"position": 1}), Refusal.BAD_VALUE),
    (Request("pause", "sink:a-table"), Refusal.BAD_VALUE),
    (Request("pause", "a"), Refusal.MALFORMED),
)


@dataclass
class Sent:
    request: Request
    state: EventState | None = None
    refusal: Refusal | None = None
    wanted: Refusal | None = None  # why it has to be refused; None: it need not be
    by: list[str] = field(default_factory=list)  # through what it was sent, once per attempt


class Client:
    def __init__(self, name: str, state: Path, url: str, token: str, seed: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self.sent: list[Sent] = []
        self.failure: BaseException | None = None
        self._chance = random.Random(seed)
        self._url, self._token = url, token
        self._local = LocalClient(str(state), requested_by=name)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._chance.uniform(0, 2 * PAUSE)):
                request, wanted = self._next()
                self.send(request, wanted)
        except BaseException as problem:
            self.failure = problem

    def send(self, request: Request, wanted: Refusal | None = None) -> Sent:
        one = Sent(request, wanted=wanted)
        self.sent.append(one)
        ways: Sequence[Callable[[Sent], EventState]] = (self._by_server, self._by_ledger)
        if self._chance.random() < 0.25:
            ways = (self._by_ledger,)
        while True:
            for way in ways:
                try:
                    one.state = way(one)
                    return one
                except ControlRefused as refused:
                    if refused.refusal is not Refusal.BUSY:
                        one.refusal = refused.refusal
                        return one
                    time.sleep(refused.retry_after or 0.05)
                except TransientError:
                    pass

    def _by_server(self, one: Sent) -> EventState:
        one.by.append("server")
        with ControlClient(self._url, self._token, "steered", timeout=10.0) as client:
            return client.send(one.request)

    def _by_ledger(self, one: Sent) -> EventState:
        one.by.append("ledger")
        return self._local.send(one.request)

    def _next(self) -> tuple[Request, Refusal | None]:
        chance = self._chance
        if chance.random() < 0.06:
            return self._bad()
        (kind,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if kind not in CHOICES:
            make: Callable[[], Request] = getattr(self, f"_{kind}")
            return make(), None
        targets, values = CHOICES[kind]
        return self._keyed(kind, chance.choice(targets), chance.choice(values)), None

    def _keyed(self, kind: str, target: str = "job", value: Any = None, **more: Any) -> Request:
        return Request(kind, target, value, idempotency_key=f"{self.name}-{len(self.sent)}", **more)

    def _value(self) -> str:
        return f"{self.name}-{len(self.sent)}"

    def _bad(self) -> tuple[Request, Refusal]:
        answered = [one.request for one in self.sent if one.state is not None and one.request.kind == "set_config"]
        if answered and self._chance.random() < 0.3:
            return Request("pause", idempotency_key=self._chance.choice(answered).idempotency_key), Refusal.KEY_REUSED
        request, why = self._chance.choice(BAD)
        return self._keyed(request.kind, request.target, request.value), why

    def _config(self) -> Request:
        key = self._chance.choice("klm")
        value = {"key": key, "unset": True} if self._chance.random() < 0.1 else {"key": key, "value": self._value()}
        return self._keyed("set_config", self._chance.choice(EVERYWHERE), value)

    def _aligned(self) -> Request:
        return self._keyed("set_config", "job", {"key": "aligned", "value": self._value()}, delivery="aligned")

    def _expiring(self) -> Request:
        at = datetime.now(timezone.utc) + timedelta(seconds=self._chance.uniform(0.1, 2))
        value = {"key": "expiring", "value": self._value()}
        return self._keyed("set_config", self._chance.choice(EVERYWHERE), value, expires_at=at)

    def _seek(self) -> Request:
        value = {"position": self._chance.randrange(2_000), "yes": True}
        return self._keyed("seek", f"source:{self._chance.choice((*CHANNELS, 'a-in/9'))}", value)

    def _broadcast(self) -> Request:
        return self._keyed("broadcast", self._chance.choice(EVERYWHERE), {"type": "note", "value": self._value()})

    def _driver(self) -> Request:
        kind = self._chance.choice(("checkpoint", "dump", "log_level", "checkpoint_config", "savepoint"))
        values: dict[str, Any] = {
            "log_level": {"level": self._chance.choice(("INFO", "WARN")), "logger": "spark_ext.chaos"},
            "checkpoint_config": {"checkpoint_interval": self._chance.choice((500, 1_000))},
            "savepoint": {"path": str(self._folder / self._value())},
            "dump": {"scope": "driver"},
        }
        return self._keyed(kind, "job", values.get(kind))

    def calm(self) -> None:
        """Lift what may keep the job from reading."""
        for target in PAUSED:
            self.send(self._keyed("resume", target))
        for name in SOURCES:
            self.send(self._keyed("rate_limit", f"source:{name}"))
        for target in EVERYWHERE:
            self.send(self._keyed("trigger_interval", target))
