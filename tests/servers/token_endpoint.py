"""A token endpoint of OAuth 2 in a thread, and a receiver that takes its tokens only: real HTTP on loopback."""

import base64
import json
import ssl
import threading
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from tests.servers.handler import Handler, InThread

CLIENT, SECRET = "shop sender", "s3cret/of:the client"  # with characters that have to be encoded


class TokenHandler(Handler):
    endpoint: "TokenEndpoint"

    def do_POST(self) -> None:
        body = self.body()
        status, answer, headers = (
            self.endpoint.give(self.headers, dict(parse_qsl(body.decode())))
            if self.path == "/token"
            else self.endpoint.take(self.headers, self.path, body)
        )
        self.answer(status, json.dumps(answer).encode() if isinstance(answer, dict) else answer.encode(), headers)

    do_PUT = do_POST


class TokenEndpoint(InThread):
    """Gives tokens at `/token`, by HTTP or with `tls`, and takes rows with a valid one anywhere else."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(TokenHandler, endpoint=self)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self._scheme = "http" if tls is None else "https"
        self._lock = threading.Lock()
        self._refusals: list[tuple[int, Any, dict[str, str]]] = []
        self._valid: set[str] = set()
        self.life: int | None = 3600
        self.forms: list[dict[str, str]] = []  # the requests for tokens that came from the client
        self.given: list[str] = []  # all tokens
        self.taken: list[tuple[str, str, bytes]] = []  # path, token and body of what was taken
        self.refused = 0  # requests whose token was not valid

    @property
    def base(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.server.server_port}"

    @property
    def url(self) -> str:
        return f"{self.base}/token"

    def refuse(self, status: int, answer: Any = "", **headers: str) -> None:
        self._refusals.append((status, answer, {name.replace("_", "-"): value for name, value in headers.items()}))

    def revoke(self) -> None:
        """Take none of the tokens that were given so far."""
        with self._lock:
            self._valid.clear()

    def give(self, headers: Any, form: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        with self._lock:
            if self._refusals:
                return self._refusals.pop(0)
            scheme, _, encoded = (headers["Authorization"] or "").partition(" ")
            if scheme == "Basic":
                client, _, secret = base64.b64decode(encoded).decode().partition(":")
                who = unquote_plus(client), unquote_plus(secret)
            else:
                who = form.pop("client_id", ""), form.pop("client_secret", "")
            if who != (CLIENT, SECRET) or form.get("grant_type") != "client_credentials":
                return 401, {"error": "invalid_client", "error_description": f"not {who[0]} with {who[1]}"}, {}
            token = f"t0ken-{len(self.given)}-of-the-endpoint"
            self.forms.append({**form, "scheme": scheme or "body"})
            self.given.append(token)
            self._valid.add(token)
            life = {} if self.life is None else {"expires_in": self.life}
            return 200, {"access_token": token, "token_type": "bearer", **life}, {}

    def take(self, headers: Any, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        with self._lock:
            token = (headers["Authorization"] or "").removeprefix("Bearer ")
            if token not in self._valid:
                self.refused += 1
                return 401, f"{token} is not valid", {}
            self.taken.append((path, token, body))
            return 200, "", {}
