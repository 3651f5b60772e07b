"""Statements of the user: once for a target, or with each epoch, in the transactions that record them.

`setup_sql` runs in a transaction that records that it ran, so it runs once, however often a start is interrupted.
`pre_sql` and `post_sql` run in the transaction of an epoch, before and after its rows: a repeated epoch does not run
them again, and what they change is visible together with the rows.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_ext.clients.postgres.problems import describe, sqlstate, to_error
from spark_ext.errors import NOTHING_VISIBLE, StateError, refused
from spark_ext.sinks.postgres_2pc.table import LOCK

if TYPE_CHECKING:
    import psycopg

    from spark_ext.sinks.postgres_2pc.record import Identity

# The parts of SQL among which statements end and words stand; what is left are numbers and operators.
_PART = re.compile(
    r"""
    (?P<comment>--[^\n]*|/\*)
    |(?P<text>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')
    |(?P<name>"(?:[^"]|"")*")
    |(?P<dollar>\$(?:[^\W\d]\w*)?\$)
    |(?P<open>['"])
    |(?P<word>[^\W\d][\w$]*)
    |(?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)
# First words of statements that begin or end a transaction, or a part of one.
_CONTROL = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"})
# First words of statements that the server does not execute within a transaction, besides those in code.
_ALONE = frozenset({("CREATE", "DATABASE"), ("DROP", "DATABASE"), ("CREATE", "TABLESPACE"), ("DROP", "TABLESPACE")})
# Classes of errors that occur again in every attempt: they are in the statements.
_WRONG = ("0A", "21", "22", "23", "25", "26", "2B", "2D", "34", "38", "39", "3B", "3D", "3F", "42", "44", "P0")
_SETUPS = """
CREATE TABLE IF NOT EXISTS spark_ext.setups (
  sink text, target text, hash text, run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (sink, target, hash));
COMMENT ON TABLE spark_ext.setups IS 'spark-ext: which setup_sql has run for a target';
"""


def split(text: str) -> list[list[str]]:
    """The words of each statement, in upper case, without names in quotes, values and comments."""
    statements: list[list[str]] = [[]]
    at = 0
    while found := _PART.search(text, at):
        at, kind = found.end(), found.lastgroup
        if kind == "word":
            statements[-1].append(found[0].upper())
        elif kind == "end":
            statements.append([])
        elif kind == "dollar":
            at = _after(text, found[0], at)
        elif kind == "open":
            raise ValueError(f"a quote {found[0]} is not closed")
        elif found[0] == "/*":
            at = _after_comment(text, at)
        elif kind in ("text", "name"):
            statements[-1].append("")
    return [words for words in statements if words]


def _after(text: str, end: str, at: int) -> int:
    place = text.find(end, at)
    if place < 0:
        raise ValueError(f"a quote {end} is not closed")
    return place + len(end)


def _after_comment(text: str, at: int) -> int:
    """Comments may contain others."""
    depth = 1
    for found in re.finditer(r"/\*|\*/", text[at:]):
        depth += 1 if found[0] == "/*" else -1
        if not depth:
            return at + found.end()
    raise ValueError("a comment /* is not closed")


def check(text: str) -> str:
    """Refuse statements that cannot be part of the transaction of an epoch."""
    statements = split(text)
    if not statements:
        raise ValueError("it has no statement")
    for words in statements:
        first, second = words[0], words[1] if len(words) > 1 else ""
        if first in _CONTROL or (first, second) == ("PREPARE", "TRANSACTION"):
            raise ValueError(
                f"it has {first}: the statements are part of the sink's own transaction, and must not begin or end one"
            )
        alone = first == "VACUUM" or (first, second) in _ALONE | {("ALTER", "SYSTEM")}
        # REFRESH MATERIALIZED VIEW CONCURRENTLY may be part of a transaction.
        if alone or ("CONCURRENTLY" in words and first in ("CREATE", "DROP", "REINDEX", "ALTER")):
            what = first if first == "VACUUM" else f"{first} ... CONCURRENTLY" if not alone else f"{first} {second}"
            raise ValueError(f"it has {what}, which PostgreSQL does not execute within a transaction")
        if first == "COPY" and {"STDIN", "STDOUT"} & set(words):
            raise ValueError("it has COPY with STDIN or STDOUT, which are not connected to anything")
    return text


@dataclass(frozen=True)
class Statements:
    """The statements of a sink."""

    setup: str | None = None
    pre: str | None = None
    post: str | None = None
    redact: bool = False  # Whether errors omit values of rows

    def set_up(self, connection: psycopg.Connection[Any], identity: Identity, who: str) -> None:
        """Run `setup_sql` unless it has run for this target; in a transaction that has locked the sink's row."""
        if self.setup is None:
            return
        if connection.execute("SELECT to_regclass('spark_ext.setups') IS NULL").fetchone() == (True,):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            connection.execute(_SETUPS)
        done = connection.execute(
            "INSERT INTO spark_ext.setups (sink, target, hash) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (identity.sink, identity.target, hashlib.sha256(self.setup.encode()).hexdigest()),
        )
        if done.rowcount:
            self.run(connection, "setup_sql", self.setup, who)

    def run(self, connection: psycopg.Connection[Any], option: str, text: str | None, who: str) -> None:
        """Run the statements of an option, if it has any, in the transaction of an epoch or of a start."""
        import psycopg

        if text is None:
            return
        try:
            connection.execute(text)
        except psycopg.Error as error:
            if sqlstate(error).startswith(_WRONG) or not sqlstate(error):
                what = f"the server does not execute the option '{option}': {describe(error, redact=self.redact)}"
                do = f"correct the option '{option}', or what it refers to"
                raise refused(what, who, do, NOTHING_VISIBLE) from None
            raise to_error(error, f"{who}, {option}", NOTHING_VISIBLE, redact=self.redact) from None
        if connection.info.encoding != "utf-8":
            what = f"the option '{option}' sets client_encoding, and rows are sent as UTF-8"
            raise refused(what, who, f"remove the statement that sets it from '{option}'", NOTHING_VISIBLE)
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
            # Not found by `check`; for example by a setting of the server for backslashes.
            raise StateError(
                f"the option '{option}' has ended the transaction of the epoch",
                operator=who,
                kept="what was written up to there may be visible, without the record of the epoch",
                do=f"remove the statement that ends the transaction from '{option}', and compare the table with the "
                "epochs in spark_ext.epochs",
            )
