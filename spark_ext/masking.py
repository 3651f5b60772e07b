"""Secrets that this process knows: no error, log line or row of the ledger may contain one.

Code that parses an option with a secret, or reads one from the environment, hands it to `remember`. Errors of this
package, its loggers and the ledger pass their texts through `mask`; `guarded` does this for errors of libraries, which
quote what they were given. The set belongs to the process: options are parsed again in each of Spark's workers.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus

HIDDEN: Final = "***"  # what is shown instead of a secret
SHORTEST: Final = 4  # shorter values are not masked: they are not secret, and their characters are in every message
_WORD: Final = 12  # a secret that is shorter is masked as a whole word only: `shop` is not hidden in `shopping`
# A secret that may be a word of any message: it is masked only where a value stands, as in `password=shop`.
_COMMON: Final = re.compile(r"[A-Z]?[a-z]{1,10}|[A-Z]{1,11}")
# What stands before a value, and its quotation mark.
_VALUE: Final = (
    r"(=\s*b?['\"]|=|['\"]\s*:\s*['\"]|//[^\s/@:]*:|(?:pass\w*|pwd|secret|token|key|credentials?)['\"]?\s*:\s*['\"]?"
    r"|\b(?:bearer|basic|password|secret|token) b?['\"]?)"
)
# Values of secret options, such as a mapping of storage options, that are settings rather than secrets.
_PLAIN: Final = re.compile(r"true|false|none|null|\d{1,5}", re.IGNORECASE)

_known: frozenset[str] = frozenset()  # replaced as a whole, because threads mask while others remember


def remember(*values: str) -> None:
    """Mask these secrets from now on, also as they look inside addresses, JSON and Python's own notation."""
    global _known
    _known |= {form for value in values for form in _forms(value) if len(form) >= SHORTEST}


def forget() -> None:
    """Forget all secrets: for tests."""
    global _known
    _known = frozenset()


def mask(text: str) -> str:
    """The text with every known secret replaced."""
    for pattern, hidden in _patterns(_known):
        text = pattern.sub(hidden, text)
    return text


@contextmanager
def guarded() -> Iterator[None]:
    """Errors raised inside pass as they are unless they, or what caused them, would show a secret.

    Then the causes are replaced by their masked text. An error of a library is replaced as well.
    """
    try:
        yield
    except Exception as error:
        shown = "".join(traceback.format_exception(error))
        hidden = mask(shown)
        if hidden == shown:
            raise
        if mask(text := f"{type(error).__name__}: {error}") == text:
            error.__traceback__ = None
            raise error from Masked(hidden)
        # The order keeps the line that says most last.
        raise Masked(f"{hidden.rstrip()}\n{mask(text)}") from None


class Masked(Exception):
    """Stands for an error that contained a secret: its stack trace as text, without the secret."""


def logger(name: str) -> logging.Logger:
    """A logger whose lines contain no known secret."""
    log = logging.getLogger(name)
    if not any(isinstance(one, _Filter) for one in log.filters):
        log.addFilter(_Filter())
    return log


def masked(handler: logging.Handler) -> logging.Handler:
    """The handler, whose lines contain no known secret from now on, whichever logger they come from."""
    handler.addFilter(_Filter())
    return handler


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the line and its stack trace; every record passes."""
        text = record.getMessage()
        if (hidden := mask(text)) != text:
            record.msg, record.args = hidden, ()
        if record.exc_info and record.exc_info[1] is not None:
            shown = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
            if (hidden := mask(shown)) != shown:
                record.exc_info, record.exc_text = None, hidden
        return True


def _forms(value: str) -> Iterator[str]:
    value = value.strip()
    # The part after a scheme, `Bearer ...`, is a secret by itself.
    for part in (value, value.partition(" ")[2].strip()):
        if len(part) < SHORTEST or _PLAIN.fullmatch(part):
            continue
        yield from (part, unquote_plus(part), quote(part, safe=""), quote_plus(part))
        yield from (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], repr(part)[1:-1])
        # Errors put their texts on one line, and stack traces indent each line.
        yield " ".join(part.split())
        yield from (line.strip() for line in part.splitlines() if len(line.strip()) >= _WORD and "-----" not in line)


@lru_cache(maxsize=2)
def _patterns(known: frozenset[str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    # The longest first: a secret may be a part of another one.
    words = sorted(known, key=lambda word: (-len(word), word))
    common = [word for word in words if _COMMON.fullmatch(word)]
    others = [_literal(word) for word in words if not _COMMON.fullmatch(word)]
    found = [(re.compile("|".join(others)), HIDDEN)] if others else []
    if common:
        values = rf"(?i:{_VALUE})(?:{'|'.join(common)})(?![A-Za-z0-9_])"
        found.append((re.compile(values), rf"\1{HIDDEN}"))
    return tuple(found)


def _literal(word: str) -> str:
    text = re.escape(word)
    if len(word) >= _WORD:
        return text
    before = r"(?<![A-Za-z0-9_])" if word[0].isalnum() else ""
    after = r"(?![A-Za-z0-9_])" if word[-1].isalnum() else ""
    return before + text + after
