"""Who may send to an inbox: what a gateway asks of senders, by the description of the inbox."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from spark_ext.errors import SparkExtError, refused
from spark_ext.ingest.description import SIGNED, InboxDescription
from spark_ext.ingest.signatures import check_secrets
from spark_ext.masking import remember
from spark_ext.server.tokens import Token, Tokens

_T = TypeVar("_T")


@dataclass(frozen=True)
class Senders:
    """Who may send: those who sign with one of the secrets, or have a token that is in each of `tokens`."""

    scheme: str = ""  # whose signature is asked for; "": none, but a token
    secrets: tuple[str, ...] = ()
    tokens: tuple[Tokens, ...] = ()  # none: no token is valid
    blocked: str = ""  # why nobody may send

    def find(self, presented: str) -> Token | None:
        """The token that was presented, with what it may do everywhere; None if it is not valid."""
        found = [one for one in (tokens.find(presented) for tokens in self.tokens) if one is not None]
        if not found or len(found) < len(self.tokens):
            return None
        return replace(found[-1], scopes=frozenset.intersection(*(one.scopes for one in found)))

    def stricter(self, other: Senders) -> Senders:
        """Those who may send by both."""
        secrets = tuple(one for one in self.secrets if one in other.secrets)
        tokens = (*self.tokens, *other.tokens) if self.tokens and other.tokens else ()
        if self.scheme != other.scheme:
            blocked = "the inbox has another scheme, which this gateway cannot use yet"
        elif self.scheme and not secrets:
            blocked = "the inbox has other secrets, which this gateway cannot use yet"
        elif not self.scheme and not tokens:
            blocked = "the inbox has other tokens, which this gateway cannot use yet"
        else:
            blocked = ""
        return Senders(self.scheme, secrets, tokens, blocked)


class Credentials:
    """With what a gateway checks senders: tokens that it was given, else those of the inbox, else its own."""

    def __init__(self, given: Tokens | None, own: Tokens | None) -> None:
        self._given, self._own = given, own

    def senders(self, description: InboxDescription, who: str) -> tuple[Senders, SparkExtError | None]:
        """Who may send by a description, and why it cannot be used; what cannot be read lets nobody in."""
        problems: list[SparkExtError] = []

        def attempt(read: Callable[[], _T]) -> _T | None:
            try:
                return read()
            except SparkExtError as problem:
                problems.append(problem)
                return None

        found = [attempt(partial(secret, place, who)) for place in description.secrets]
        secrets = tuple(one for one in found if one is not None)
        attempt(lambda: check_secrets(description.scheme, secrets, who))
        tokens = attempt(lambda: self._tokens(description, who))
        scheme = description.scheme if description.scheme in SIGNED else ""
        senders = Senders(scheme, secrets, () if tokens is None else (tokens,))
        return senders, problems[0] if problems else None

    def _tokens(self, description: InboxDescription, who: str) -> Tokens:
        if self._given is not None:
            return self._given
        if description.tokens:
            return Tokens(description.tokens)
        if description.scheme in SIGNED:
            return Tokens()
        if self._own is not None:
            return self._own
        raise refused(
            "the inbox asks for no signature any more, and neither it nor this gateway has tokens",
            who,
            "give tokens to the inbox, or start the gateway again, with --tokens or to have it make a token",
        )


def secret(place: str, who: str) -> str:
    """The secret at `env:NAME` or `file:PATH`; masked in this process's errors and log lines from now on."""
    kind, _, where = place.partition(":")
    read: Callable[[str], str] | None = {"env": os.environ.__getitem__, "file": _of_file}.get(kind)
    try:
        if read is None:
            raise ValueError
        found = read(where)
    except (KeyError, OSError, ValueError):
        raise refused(
            f"the secret '{place if read else '***'}' cannot be read",
            who,
            "set the variable for the gateway, or check the file; a secret is named as env:NAME or file:PATH",
        ) from None
    remember(found)
    return found


def _of_file(path: str) -> str:
    return Path(path).read_text("utf-8").strip()
