"""Writes the rows of one incarnation to the ledger: each commit is fenced."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_ext.ledger.identity import FIRST_LINEAGE, Incarnation, job_row
from spark_ext.ledger.incarnation import forget
from spark_ext.ledger.schema import JobRow, Row
from spark_ext.masking import mask

if TYPE_CHECKING:
    from spark_ext.ledger.ledger import Ledger


class LedgerWriter:
    """Adds rows for one incarnation, with secrets masked in all texts. Safe for several threads."""

    def __init__(self, ledger: Ledger, incarnation: Incarnation) -> None:
        self.ledger = ledger
        self.incarnation = incarnation
        self._lock = threading.Lock()
        self._written: list[Row] = []

    def append(self, rows: Row | Sequence[Row]) -> None:
        """Add rows to their tables, one commit per table.

        The table of the last row is written last: once that row is visible, so are all others. If a table fails, the
        ones before it have been written; a call with the same row objects adds only the missing rows.
        """
        with self._lock:
            given = [rows] if isinstance(rows, Row) else list(rows)
            written = {id(row) for row in self._written}  # the list keeps them alive, so ids are not reused
            groups: dict[type[Row], list[Row]] = {}
            for row in given:
                if id(row) not in written:
                    groups.setdefault(type(row), []).append(row)
            last = {type(row): number for number, row in enumerate(given)}
            for row_type, group in sorted(groups.items(), key=lambda it: last[it[0]]):
                self.ledger.table(row_type).append([_masked(row) for row in group], self.incarnation.fence)
                self._written.extend(group)
            # What another call has to add again stays known.
            done = {id(row) for row in given}
            self._written = [row for row in self._written if id(row) not in done]

    def new_lineage(self, query: str, reason: str) -> int:
        """Start a new lineage, of a query or of the whole job ("")."""
        return self.new_lineages([query], reason)[query]

    def new_lineages(self, queries: Sequence[str], reason: str) -> dict[str, int]:
        """Start a new lineage of each of several queries, in one commit: all of them, or none."""
        newest = max((row.lineage for row in self.ledger.jobs()), default=FIRST_LINEAGE)
        numbers = {query: newest + number for number, query in enumerate(queries, 1)}
        self.append([self._reset(query, lineage, reason) for query, lineage in numbers.items()])
        return numbers

    def renamed(self, query: str, old: str, lineage: int) -> None:
        """Record that a query has another name, and the old name no history any more; one commit."""
        newest = max((row.lineage for row in self.ledger.jobs()), default=FIRST_LINEAGE)
        self.append(self._renamed(query, old, lineage, newest + 1))

    def restored(self, lineage: int, parent: int, savepoint: str, renamed: Mapping[str, str]) -> None:
        """Record that all queries have the lineage of a restore; `renamed` has other names in the savepoint."""
        rows = [job_row(self.incarnation, "restored", lineage=lineage, parent=parent, savepoint=savepoint)]
        for number, (query, old) in enumerate(sorted(renamed.items()), 1):
            rows += self._renamed(query, old, lineage, lineage + number)
        self.append(rows)

    def removed(self, query: str, lineage: int) -> None:
        """Record that a query is abandoned on purpose."""
        self.append(job_row(self.incarnation, "removed", lineage=lineage, query=query, reason="on request"))

    def end(self, reason: str) -> JobRow:
        """Record that the incarnation has ended regularly."""
        try:
            lineage = max((row.lineage for row in self.ledger.jobs()), default=self.incarnation.lineage)
            row = job_row(self.incarnation, "ended", lineage=lineage, reason=reason)
            self.append(row)
            return row
        finally:
            self.forget()

    def forget(self) -> None:
        """In this process the incarnation no longer runs, whether or not its end could be recorded."""
        forget(self.ledger.uri, self.incarnation.number)

    def _reset(self, query: str, lineage: int, reason: str) -> JobRow:
        return job_row(self.incarnation, "reset", lineage=lineage, query=query, reason=reason)

    def _renamed(self, query: str, old: str, lineage: int, next_of_old: int) -> list[JobRow]:
        reason = f"query '{old}' is now '{query}'"
        row = job_row(self.incarnation, "renamed", lineage=lineage, query=query, reason=reason, renamed_from=old)
        return [row, self._reset(old, next_of_old, reason)]


_FREE_TEXT = ("what", "action", "reason", "evidence", "cause", "labels")  # may quote servers and users


def _masked(row: Row) -> Row:
    texts = {name: getattr(row, name) for name in _FREE_TEXT if getattr(row, name, None)}
    changed = {name: hidden for name, text in texts.items() if (hidden := _without_secrets(text)) != text}
    return replace(row, **changed) if changed else row


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {name: _without_secrets(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(one) for one in value]
    return value
