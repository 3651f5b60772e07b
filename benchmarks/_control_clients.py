"""Clients of a server of control events, in a process of their own: they poll, or send bursts."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx

from benchmarks._control import JOB

POLL_S = 1.0  # pause between two requests


@contextmanager
def process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(time.time).result()
        yield pool


@dataclass
class Answers:
    statuses: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)  # of each POST that was accepted, ms
    accepted: list[list[tuple[int, int]]] = field(default_factory=list)
    """By client, of each accepted request its number and its sequence."""


def posts(url: str, token: str, clients: int, each: int, *, warm: int = 0, in_flight: int = 1) -> Answers:
    """Send events, half of them keys of the configuration, half broadcasts.

    Each client sends `warm` requests that do not count before its `each` others, and has `in_flight` of them open at
    once.
    """
    found = Answers(accepted=[[] for _ in range(clients)])

    def client(number: int) -> None:
        values = iter(range(-warm, each))
        _threads([lambda: sends(number, values)] * in_flight)

    def sends(number: int, values: Iterator[int]) -> None:
        # They share the machine with what is measured, so they use the plainest client that there is.
        address = urlsplit(url)
        with closing(HTTPConnection(address.hostname or "", address.port, timeout=60)) as http:
            while (value := next(values, None)) is not None:
                body = {"kind": "set_config", "value": {"key": f"client{number}", "value": value}}
                if value % 2:
                    body = {"kind": "broadcast", "value": {"type": "burst", "value": [number, value]}}
                content = json.dumps(body).encode()
                begin = time.perf_counter()
                http.request("POST", f"/v1/jobs/{JOB}/control", content, headers)
                answer = http.getresponse()
                content = answer.read()
                took = (time.perf_counter() - begin) * 1000
                if value < 0:
                    continue
                with counted:
                    found.statuses[answer.status] += 1
                if answer.status == 202:
                    found.times.append(took)
                    found.accepted[number].append((value, json.loads(content)["sequence"]))

    counted = threading.Lock()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    _threads([partial(client, number) for number in range(clients)])
    return found


def poll(url: str, token: str, waited_for: str, seconds: float, *, send: bool = False) -> Answers:
    """Poll for some seconds: one client lists events every second, another one waits for an event that stays open.

    If asked to `send`, a third one sends an event every second.
    """
    found, end = Answers(), time.monotonic() + seconds
    place = f"/v1/jobs/{JOB}/control"

    def left() -> float:
        return max(0.0, end - time.monotonic())

    def lists(http: httpx.Client) -> None:
        found.statuses[http.get(place, params={"limit": 100}).status_code] += 1

    def waits(http: httpx.Client) -> None:
        found.statuses[http.get(f"{place}/{waited_for}", params={"wait": round(left(), 3)}).status_code] += 1

    def sends(http: httpx.Client) -> None:
        body = {"kind": "set_config", "value": {"key": "polled", "value": left()}}
        begin = time.perf_counter()
        answer = http.post(place, json=body)
        found.times.append((time.perf_counter() - begin) * 1000)
        found.statuses[answer.status_code] += 1

    def again_and_again(ask: Callable[[httpx.Client], None]) -> Callable[[], None]:
        def run() -> None:
            with _http(url, token) as http:
                while True:
                    ask(http)
                    if not left():
                        return
                    time.sleep(min(POLL_S, left()))

        return run

    _threads([again_and_again(ask) for ask in (lists, waits, *([sends] if send else []))])
    return found


_MANY = httpx.Limits(max_connections=None, max_keepalive_connections=None)


def _http(url: str, token: str) -> httpx.Client:
    # To check certificates would have to be prepared, at length.
    return httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False, verify=False,
        limits=_MANY,
    )  # fmt: skip


def _threads(work: list[Callable[[], None]]) -> None:
    problems: list[BaseException] = []

    def caught(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=caught, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
