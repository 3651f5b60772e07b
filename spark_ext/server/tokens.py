"""Tokens of servers: random, kept as hashes in a file that only its owner can read.

A token is 256 random bits, so that a plain SHA-256 is as hard to invert as a slow hash would be.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from spark_ext.errors import ConfigurationError, SparkExtError, StorageError
from spark_ext.masking import HIDDEN, logger, remember
from spark_ext.storage import LocalFolder

log = logger("spark_ext.server")

OF_JOBS: Final = ("read", "control")  # what a token may allow: to see all of a job; to change it
SCOPES: Final = (*OF_JOBS, "ingest")  # and to send events to a gateway
PREFIX: Final = "sxt_"  # with which tokens begin, so that they are recognized where they do not belong
_FORM = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


@dataclass(frozen=True)
class Token:
    """What is known of a token."""

    name: str  # whose it is: `requested_by` of its events
    scopes: frozenset[str]
    sha256: str  # of the token itself, hexadecimal


def generate() -> str:
    """A new token. It is masked in this process's errors, log lines and rows from now on."""
    token = PREFIX + secrets.token_urlsafe(32)
    remember(token)
    return token


def hide(text: str) -> str:
    """The text without anything that looks like a token, whether this process knows it or not."""
    return _FORM.sub(HIDDEN, text)


def hashed(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def create(file: str | Path, name: str, scopes: Iterable[str] = OF_JOBS) -> str:
    """Make a token for a new name, and add it to a file, which is created with mode 0600 if it is not there.

    The token that is returned is stored nowhere, so show it once.
    """
    path, given = Path(file), frozenset(scopes)
    if not _NAME.fullmatch(name):
        raise _refused(path, f"{name[:100]!r} is not a valid token name", "use letters, digits and . _ @ -")
    if not given or not given <= set(SCOPES):
        raise _refused(path, f"unknown scopes: {', '.join(sorted(given)) or 'none'}", "use read, control or ingest")
    token = generate()
    with _locked(path):
        known = read(path) if path.exists() else ()
        if any(one.name == name for one in known):
            raise _refused(path, f"there is a token named '{name}' already", "use another name, or revoke it first")
        _write(path, [*known, Token(name, given, hashed(token))])
    return token


def revoke(file: str | Path, name: str) -> bool:
    """Remove a token; returns whether one had this name. Servers that run refuse it from their next request on."""
    path = Path(file)
    with _locked(path):
        known = read(path)
        kept = [one for one in known if one.name != name]
        if len(kept) < len(known):
            _write(path, kept)
    return len(kept) < len(known)


def read(file: str | Path) -> tuple[Token, ...]:
    """The tokens of a file."""
    path = Path(file)
    try:
        # Without O_NONBLOCK a named pipe would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            seen = os.fstat(opened.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_uid not in (os.geteuid(), 0):
                raise _refused(path, "the token file is not a file of this user", f"chown {os.geteuid()} {path}")
            if seen.st_mode & 0o077:
                mode = oct(stat.S_IMODE(seen.st_mode))[2:]
                raise _refused(path, f"others can access the token file: its mode is {mode}", f"chmod 600 {path}")
            raw = json.loads(opened.read())
        if raw["version"] != 1:
            raise ValueError(f"version {raw['version']}")
        return tuple(Token(one["name"], frozenset(one["scopes"]), one["sha256"]) for one in raw["tokens"])
    except OSError as problem:
        raise _refused(path, f"the token file cannot be read: {problem.strerror}", "create it with a token") from None
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise _refused(path, f"this is not a token file: {type(problem).__name__}", "create a new one") from None


def _write(path: Path, tokens: Sequence[Token]) -> None:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    rows = [{"name": one.name, "scopes": sorted(one.scopes), "sha256": one.sha256} for one in tokens]
    text = json.dumps({"version": 1, "written_at": now, "tokens": rows}, indent=2) + "\n"
    try:
        # Durable: a token that was removed must not come back.
        LocalFolder(path.parent).write(path.name, text, durable=True, private=True)
    except OSError as problem:
        raise _not_written(path, problem) from problem


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, of all processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as problem:
        raise _not_written(path, problem) from problem
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _refused(path: Path, what: str, do: str) -> ConfigurationError:
    return ConfigurationError(what, operator=f"token file {path}", kept="no token was added or removed", do=do)


def _not_written(path: Path, problem: OSError) -> StorageError:
    return StorageError(
        f"the token file cannot be written: {problem.strerror}",
        operator=f"token file {path}",
        kept="the file was not changed",
        do="check the folder's permissions and free space",
    )


class Tokens:
    """The tokens that a server accepts: those of a file, as it is now, or given ones. Safe for several threads."""

    def __init__(self, file: str | Path | None = None, given: Iterable[Token] = ()) -> None:
        self._file = None if file is None else Path(file)
        self._given = tuple(given)
        self._known: tuple[Token, ...] = () if self._file is None else read(self._file)
        self._seen = self._mark()
        self._remembered: set[str] = set()
        self._lock = threading.Lock()

    def find(self, presented: str) -> Token | None:
        """The token that was presented; None if it is not valid. Takes the same time for all that are not.

        A valid one is masked in this process's errors, log lines and rows from now on.
        """
        digest = hashed(presented)
        found = None
        for one in self._current():
            if hmac.compare_digest(one.sha256, digest):
                found = one
        if found is not None and digest not in self._remembered:
            remember(presented)
            self._remembered.add(digest)
        return found

    def _current(self) -> tuple[Token, ...]:
        if self._file is None:
            return self._given
        with self._lock:
            mark = self._mark()
            if mark != self._seen:
                try:
                    self._known = read(self._file)
                except SparkExtError as problem:
                    log.error("no token is accepted until the token file can be used: %s", problem)
                    self._known = ()
                self._seen = mark
            return (*self._known, *self._given)

    def _mark(self) -> tuple[int, ...] | None:
        if self._file is None:
            return None
        try:
            seen = self._file.stat()
        except OSError:
            return None
        return seen.st_mtime_ns, seen.st_ino, seen.st_size, seen.st_mode, seen.st_uid
