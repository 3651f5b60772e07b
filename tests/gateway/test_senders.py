"""Who may send follows the description of the inbox while the gateway runs."""

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ext.gateway.senders import Senders
from spark_ext.ingest.description import ABOUT
from spark_ext.server.tokens import Token, Tokens, create, hashed, revoke
from spark_ext.storage import LocalFolder
from tests.gateway.served import NAME, SECRETS, VARIABLE, Client, Served, serving, signed, stored
from tests.gateway.test_gateway import refused
from tests.gateway.test_websocket import connected

BODY = b'{"id": "evt_1"}'
MISSING = "env:SPARK_EXT_NOT_SET"


def change(own: Served, **settings: Any) -> None:
    """Change the description of the inbox, as the next start of the job would, and let the gateway read it."""
    folder = LocalFolder(own.state / "inboxes" / NAME)
    folder.write(ABOUT, json.dumps({**json.loads(folder.read(ABOUT)), **settings}))
    own.server.refresh()


def told(client: Client, **headers: str) -> int:
    return client.post(BODY, **headers).status


class Files:
    """Two token files: `kept` is in both, `old` in the first one, and `new` in the second one."""

    def __init__(self, folder: Path) -> None:
        first, second = folder / "first.json", folder / "second.json"
        self.first, self.second = str(first), str(second)
        self.kept, self.old = (create(first, name, ["ingest"]) for name in ("kept", "old"))
        shutil.copy(first, second)
        revoke(second, "old")
        self.new = create(second, "new", ["ingest"])

    def statuses(self, own: Served) -> list[int]:
        return [told(Client(own.port, token)) for token in (self.kept, self.old, self.new)]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def own(tmp_path: Path, files: Files) -> Iterator[Served]:
    """Without signatures, with the first file of tokens."""
    with serving(tmp_path / "state", about={"tokens": files.first}) as found:
        yield found


def test_other_tokens_are_followed_on_open_connections_too(own: Served, files: Files) -> None:
    assert files.statuses(own) == [202, 202, 401]
    with (
        connected(own, Authorization=f"Bearer {files.kept}") as kept,
        connected(own, Authorization=f"Bearer {files.old}") as old,
    ):
        for client in (kept, old):
            client.send(b"before")
            assert client.answer()["level"] == "disk"
        change(own, tokens=files.second)
        assert files.statuses(own) == [202, 401, 202]
        old.send(b"after", b"after that")
        assert old.answer()["status"] == 401
        assert old.closed() == 1008
        kept.send(b"after")
        assert kept.answer()["level"] == "disk"
        revoke(files.second, "kept")
        kept.send(b"revoked")
        assert kept.answer()["status"] == 401
        assert kept.closed() == 1008
    own.server.stop()
    assert [row["body"] for row in stored(own.state) if row["body"] != BODY] == [b"before", b"before", b"after"]


def test_a_gateways_own_token_counts_while_the_inbox_names_none(tmp_path: Path, files: Files) -> None:
    with serving(tmp_path / "state") as own:
        assert told(own.client) == 202
        change(own, tokens=files.first)
        assert told(own.client) == 401 and files.statuses(own) == [202, 202, 401]
        change(own, tokens="")
        assert told(own.client) == 202 and files.statuses(own) == [401, 401, 401]


def test_tokens_that_the_gateway_was_given_count_whatever_the_inbox_names(tmp_path: Path, files: Files) -> None:
    with serving(tmp_path / "state", tokens=files.second) as own:
        for tokens in (files.first, str(tmp_path / "missing.json"), ""):
            change(own, tokens=tokens)
            assert files.statuses(own) == [202, 401, 202]


def test_signatures_are_asked_for_as_soon_as_the_scheme_has_them(
    own: Served, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, SECRETS["stripe"])
    by_token, stranger = Client(own.port, files.kept), Client(own.port)
    with connected(own, Authorization=f"Bearer {files.kept}") as client:
        change(own, scheme="stripe", secrets=[f"env:{VARIABLE}"])
        client.send(BODY)
        assert client.answer()["reason"] == "scheme", "a message has no signature"
        assert client.closed() == 1008
    assert told(by_token) == 401 and told(stranger, **signed("stripe", BODY)) == 202
    change(own, scheme="", secrets=[])
    assert told(by_token) == 202 and told(stranger, **signed("stripe", BODY)) == 401


def test_an_inbox_that_nobody_could_send_to_is_refused_with_the_reason(
    tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path / "state", "stripe") as own:
        change(own, scheme="", secrets=[])
        own.server.refresh()
        for answer in (own.post(BODY), own.post(BODY, **signed("stripe", BODY)), own.ask("GET", "/health")):
            refused(answer, 503, "description", "another scheme")
        (line,) = (one.message for one in caplog.records if one.levelno == logging.ERROR)
        assert "neither it nor this gateway has tokens" in line and "start the gateway again" in line
        change(own, tokens=files.first)
        assert files.statuses(own) == [202, 202, 401]


def test_who_may_send_by_one_description_only_may_not_while_the_new_one_is_invalid(own: Served, files: Files) -> None:
    change(own, tokens=files.second, ack="sometimes")
    assert files.statuses(own) == [202, 401, 401]
    good = {"version": 1, "tokens": "", "secrets": [], "columns": None, "max_body": 100}
    for damaged in ("tokens", 5), ("secrets", [1]), ("columns", []), ("max_body", "1"), ("version", 9):
        change(own, **{**good, damaged[0]: damaged[1]})
        assert files.statuses(own) == [202, 401, 401], "what it said before it was damaged still counts"


def test_a_description_that_becomes_usable_is_followed(own: Served, files: Files, tmp_path: Path) -> None:
    with connected(own, Authorization=f"Bearer {files.kept}") as client:
        later = tmp_path / "later.json"
        change(own, tokens=str(later))
        refused(own.post(BODY), 503, "description", "other tokens")
        client.send(b"x")
        assert (client.answer()["status"], client.closed()) == (503, 1013)
    change(own, tokens=files.first)
    assert files.statuses(own) == [202, 202, 401], "what it was before"
    change(own, tokens=str(later))
    shutil.copy(files.second, later)
    own.server.refresh()
    assert files.statuses(own) == [202, 401, 202]


def test_a_secret_that_the_gateway_does_not_have_yet_keeps_nobody_out_who_has_another(tmp_path: Path) -> None:
    with serving(tmp_path, "stripe") as own:
        change(own, secrets=[MISSING, f"env:{VARIABLE}"])
        assert told(own.client, **signed("stripe", BODY)) == 202
        change(own, secrets=[MISSING])
        refused(own.post(BODY, **signed("stripe", BODY)), 503, "description", "other secrets")
        change(own, scheme="github", secrets=[f"env:{VARIABLE}"], ack="sometimes")
        refused(own.post(BODY, **signed("stripe", BODY)), 503, "description", "another scheme")


def test_a_token_may_do_what_both_descriptions_let_it_do() -> None:
    may, may_not = (
        Senders(tokens=(Tokens(given=[Token("a", frozenset({scope}), hashed("t"))]),)) for scope in ("ingest", "read")
    )
    for both in (may.stricter(may_not), may_not.stricter(may)):
        found = both.find("t")
        assert found is not None and not found.scopes
    assert may.stricter(Senders()).find("t") is None
