"""A client that pushes events over HTTP alone, and journals what it has sent and what was acknowledged.

It signs by Standard Webhooks, with code of its own. A line is in its journal, synced, before a request is sent, and
another one once that was acknowledged; of a request without an answer nobody knows.
"""

import base64
import hashlib
import hmac
import http.client
import json
import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REDELIVERED = 0.2  # share of the requests that are sent again
BATCHES = 0.2  # share of the requests that are batches
TIMEOUT = 20.0  # of a request, s
PAUSE = 0.05  # between two requests, s: the processors are for who is killed
GIVES_UP = 0.3  # how often a request that got no answer is never sent again


def signed(secret: bytes, identity: str, body: bytes) -> dict[str, str]:
    """The headers of a request, as https://www.standardwebhooks.com describes them."""
    moment = str(int(time.time()))
    digest = hmac.new(secret, f"{identity}.{moment}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": identity, "webhook-timestamp": moment, "webhook-signature": signature}


@dataclass(frozen=True)
class Sent:
    """A request, which is the same whenever it is sent."""

    identity: str
    events: tuple[str, ...]  # their ids

    @property
    def body(self) -> bytes:
        return b"\n".join(json.dumps({"id": one, "about": "x" * (len(one) * 7 % 90)}).encode() for one in self.events)

    @property
    def kind(self) -> str:
        return "application/json" if len(self.events) == 1 else "application/x-ndjson"


@dataclass
class Journaled:
    """What the journals of a folder say."""

    attempted: set[str] = field(default_factory=set)
    acknowledged: dict[str, int] = field(default_factory=dict)  # by event: when first, ns of the monotonic clock
    answers: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # by request: gateways, and when

    @classmethod
    def read(cls, folder: Path) -> "Journaled":
        found = cls()
        for line in (line for file in sorted(folder.glob("*.jsonl")) for line in _whole_lines(file)):
            if line["what"] == "sends":
                found.attempted.update(line["events"])
                continue
            for one in line["events"]:
                found.acknowledged.setdefault(one, line["at"])
            found.answers.setdefault(line["id"], []).append((line["gateway"], line["at"]))
        return found

    def redelivered(self) -> int:
        """How often a request was acknowledged again, by another gateway than the first."""
        return sum(gateway != answers[0][0] for answers in self.answers.values() for gateway, _ in answers[1:])

    def after_seals(self, seals: Sequence[tuple[int, int]]) -> int:
        """How often that was after the log of the first had been sealed; `seals` are gateways, and when."""
        return sum(
            any(gateway == sealed and first < moment < at for sealed, moment in seals)
            for (gateway, first), *later in self.answers.values()
            for _, at in later
        )


def _whole_lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


class Client:
    """One thread that sends a request after the other, to any of the gateways, until it is stopped."""

    def __init__(self, name: str, folder: Path, urls: Sequence[tuple[str, int, str]], secret: bytes, seed: str) -> None:
        self.name, self._urls, self._secret = name, urls, secret
        folder.mkdir(parents=True, exist_ok=True)
        self._journal = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._chance = random.Random(seed)
        self._done: list[tuple[Sent, int]] = []  # with the gateway that has acknowledged it
        self._number = 0
        self._open: dict[int, http.client.HTTPConnection] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: BaseException | None = None
        self.refused: dict[str, int] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop; a request that got no answer yet is not sent again."""
        self._stopped.set()
        self._thread.join()
        os.close(self._journal)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PAUSE):
                self._step()
        except BaseException as problem:
            self.failure = problem

    def _step(self) -> None:
        if self._done and self._chance.random() < REDELIVERED:
            # One of the last, or one from long ago, whose gateway has sealed its log meanwhile.
            sent, first = self._chance.choice(self._done[-20:] if self._chance.random() < 0.5 else self._done)
            others = [number for number in range(len(self._urls)) if number != first] or [first]
            self._deliver(sent, self._chance.choice(others))
            return
        count = self._chance.randint(2, 12) if self._chance.random() < BATCHES else 1
        events = tuple(f"{self.name}-{self._number + number}" for number in range(count))
        self._number += count
        sent = Sent(f"msg_{events[0]}", events)
        self._note("sends", sent)
        self._deliver(sent, self._chance.randrange(len(self._urls)))

    def _deliver(self, sent: Sent, gateway: int) -> None:
        """Send it to one gateway after the other until it is acknowledged."""
        while not self._stopped.is_set():
            status, wait = self._post(sent, gateway)
            if 200 <= status < 300:
                self._note("acknowledged", sent, gateway=gateway, status=str(status), at=time.monotonic_ns())
                self._done.append((sent, gateway))
                return
            if status and status not in (429, 503):
                raise AssertionError(f"{sent.identity} was answered with {status}")
            self.refused[str(status)] = self.refused.get(str(status), 0) + 1
            if not status and self._chance.random() < GIVES_UP:
                return
            self._stopped.wait(wait)
            gateway = (gateway + 1) % len(self._urls)

    def _post(self, sent: Sent, gateway: int) -> tuple[int, float]:
        """The status, 0 without an answer; and for how long to wait until the next attempt, s."""
        host, port, path = self._urls[gateway]
        http_ = self._open.pop(gateway, None) or http.client.HTTPConnection(host, port, timeout=TIMEOUT)
        try:
            headers = {"Content-Type": sent.kind, **signed(self._secret, sent.identity, sent.body)}
            http_.request("POST", path, sent.body, headers)
            answer = http_.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            http_.close()
            return 0, 0.1
        self._open[gateway] = http_
        return answer.status, min(1.0, float(answer.headers.get("Retry-After") or 0.1))

    def _note(self, what: str, sent: Sent, **more: Any) -> None:
        line = {"what": what, "id": sent.identity, "events": sent.events, **more}
        os.write(self._journal, f"{json.dumps(line)}\n".encode())
        os.fsync(self._journal)
