"""The process of a gateway: an inbox, and the endpoint at which senders reach it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from spark_ext.errors import FencedError, StorageError
from spark_ext.gateway.admission import SCOPE, Admission
from spark_ext.gateway.app import Gateway
from spark_ext.gateway.inbox import Inbox
from spark_ext.gateway.reception import Reception
from spark_ext.gateway.senders import Credentials
from spark_ext.gateway.websocket import WebSockets
from spark_ext.ingest.description import SIGNED
from spark_ext.ingest.store import StoreFigures
from spark_ext.masking import logger
from spark_ext.server.endpoint import Endpoint, Tls
from spark_ext.server.guard import Hosts
from spark_ext.server.limits import Limits
from spark_ext.server.tokens import Token, Tokens, generate, hashed

log = logger("spark_ext.gateway")

LIMITS: Final = Limits(rate=20_000.0, burst=40_000)
"""Those of a gateway; the size of a body is that of its inbox."""

LOOK_EVERY: Final = 0.2  # how often it is looked whether to stop, s
REFRESH_EVERY: Final = 2.0  # how often the description is read, s


class GatewayServer:
    """Accepts events for an inbox until it is stopped, or the inbox is drained.

    Without a file of tokens, neither given nor in the description of the inbox, it makes a new one, see `token`, unless
    senders sign what they send.
    """

    def __init__(
        self,
        state: str,
        name: str,
        gateway: str,
        *,
        wal: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        tokens: str | Path | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        allowed_hosts: Sequence[str] = (),
        shared: bool = False,
        storage_options: Mapping[str, str] | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self._inbox = Inbox(state, name, gateway, wal, storage_options)
        described = self._inbox.described()
        self._limits = replace(limits, body_bytes=described.max_body)
        self._endpoint = Endpoint(
            self._inbox.operator, self._limits, host=host, port=port, tls=tls, insecure=insecure, shared=shared
        )
        self.token: str | None = None
        """The token, if one was made: show it once. It is valid as long as this object."""
        own: Tokens | None = None
        if not (tokens or described.tokens or described.scheme in SIGNED):
            self.token = generate()
            own = Tokens(given=[Token("local", frozenset({SCOPE}), hashed(self.token))])
        self._credentials = Credentials(Tokens(tokens) if tokens else None, own)
        self._hosts = Hosts(host, allowed_hosts)

    @property
    def url(self) -> str:
        """The address of the inbox; after `start`."""
        return f"{self._endpoint.url}/v1/inboxes/{self._inbox.name}"

    def start(self) -> None:
        """Recover what a former process has left, then start answering requests."""
        self._inbox.open(self._credentials)
        reception, admission = Reception(self._inbox), Admission(self._hosts, self._limits)
        gateway = Gateway(reception, admission, self._limits)
        sockets = WebSockets(reception, admission, gateway)
        try:
            self._endpoint.start(gateway, sockets.close, sockets.protocol)
        except BaseException:
            self._inbox.close()
            raise
        log.info("events are accepted at %s", self.url)

    def run(self, asked: threading.Event) -> bool:
        """Run until `asked` is set, or the inbox is drained; returns whether it was drained. Then `stop` it.

        Raises:
            SparkExtError: another process has taken over, or the store cannot be opened again.
        """
        gc.freeze()  # what was imported stays: no collection looks through it again
        looked = time.monotonic()
        while not asked.wait(LOOK_EVERY):
            if not self._endpoint.wait(0):
                raise StorageError(
                    "the endpoint has ended by itself",
                    operator=self._inbox.operator,
                    kept="everything that was acknowledged",
                    do="start the gateway again, and see its log",
                )
            store = self._inbox.now.store
            if store.fenced:
                raise FencedError(
                    "another process serves this gateway",
                    operator=self._inbox.operator,
                    kept="everything that was acknowledged; this process acknowledges nothing more",
                    do="nothing: the newer process continues; start each gateway once",
                )
            if store.wait_sealed(0):
                return True
            if time.monotonic() - looked > REFRESH_EVERY:
                self.refresh()
                looked = time.monotonic()
        return False

    def refresh(self) -> None:
        """Obey the description of the inbox as it is now, if it can be used."""
        self._inbox.refresh()

    def figures(self) -> StoreFigures:
        """What it has accepted, and holds."""
        return self._inbox.now.store.figures()

    def stop(self) -> None:
        """Answer 503, write what waits, then close all connections. Idempotent."""
        try:
            self._inbox.close()
        finally:
            self._endpoint.stop()

    def __enter__(self) -> GatewayServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
