"""Rows added to a table, in steps: by the transactions that wrote them, or by an increasing column.

By transaction, a step is all rows with `start <= xid < end`, where every transaction below `end` has ended: complete,
whatever the transactions did, and whenever they committed. By column, it is `start < value <= end`, where `end` is at
rest (see `snapshot`): no smaller value will appear. Its own value may, unless values are unique. So a position then has
a transaction as its second part: of the rows with its value it is behind those of older ones. The rows of a view do not
say which transaction wrote them: there it has the keys of those that were read, as long as they are few.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from spark_ext.errors import NOTHING_DONE, DataError
from spark_ext.model.offsets import Json
from spark_ext.sources.contract import Advance, Limit
from spark_ext.sources.positions import no_position, number_in
from spark_ext.sources.postgres.relation import XID, Relation, literal, quoted
from spark_ext.sources.postgres.slice import MOST_WRITERS, Slice, of_increment, up_to
from spark_ext.sources.postgres.snapshot import View, greatest_of

_TRANSACTION = "the number of a transaction, up to the oldest one that has not ended"


def digest(view: View, found: Slice) -> tuple[int, dict[str, Any]]:
    """The number of rows, and their part of a position: number, hash, and the snapshot in which they were counted."""
    seen = view.held
    row = view.connection.execute(found.digest(seen.least)).fetchone()
    assert row is not None
    count, hashed, writers = int(row[0]), int(row[1]), row[2] or []
    position = {"rows": count, "hash": hashed, "snapshot": seen.id}
    if found.has_xid:
        position["next"] = seen.next
        if seen.least < seen.next and len(writers) <= MOST_WRITERS:
            position |= {"least": seen.least, "writers": writers}
    return count, position


MOST_KEYS = 1_000  # maximum number of keys in a position: of the rows of a view that have its value


def null_key(relation: Relation, who: str) -> DataError:
    """The error of a row whose key is null."""
    do = "exclude such rows in the query, or name columns without nulls in the option 'key'"
    return DataError(f"there are rows whose key '{relation.key.name}' is null", operator=who, kept=NOTHING_DONE, do=do)


def _kept_of(at: Mapping[str, Any]) -> dict[str, Any]:
    """What a position has that does not depend on where it is."""
    return {name: at[name] for name in ("open", "next") if name in at}


def rows_of(limit: Limit, relation: Relation) -> int | None:
    """A limit in rows; bytes are converted by the average width of rows."""
    by_bytes = None if limit.bytes is None else max(1, limit.bytes // relation.width)
    given = [one for one in (limit.rows, by_bytes) if one is not None]
    return min(given) if given else None


def shared(relation: Relation) -> dict[str, Any]:
    """What the data of all channels have: the key, and whether rows say which transaction wrote them."""
    key = relation.key
    return {"key": key.stored(key.columns), "type": key.stored(key.types), "xid": relation.has_xid}


class Increments(ABC):
    """How increments are found."""

    _column: str | None = None  # by which they are found; None: by transaction

    def __init__(self, view: View, relation: Relation, poll_interval: int) -> None:
        self._view, self._relation = view, relation
        self._poll_interval = poll_interval / 1000  # s
        self._looked = float("-inf")

    @abstractmethod
    def begin(self) -> dict[str, Any]:
        """The beginning of the increments; the view then holds a snapshot in which all earlier rows are visible."""

    @abstractmethod
    def latest(self) -> dict[str, Any]:
        """The position up to which they could be read now."""

    @abstractmethod
    def _end(self, start: Mapping[str, Any], limit: Limit) -> dict[str, Any] | None:
        """A position after `start` up to which all rows exist, in the view's snapshot."""

    @abstractmethod
    def _cut(self, start: Mapping[str, Any], end: Mapping[str, Any], rows: int) -> dict[str, Any]:
        """An earlier end, with about that many rows before it."""

    @abstractmethod
    def passed(self, start: Mapping[str, Any]) -> tuple[str, str] | None:
        """Rows up to a position: the condition as SQL, and in words; None if no rows are before it."""

    @abstractmethod
    def seek(self, at: Mapping[str, Any], position: Json) -> dict[str, Any]:
        """Check a position."""

    def _slice(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Slice:
        data = shared(self._relation)
        return of_increment(self._relation.source, data, self._column, start, end, self._relation.where)

    def advance(self, start: Mapping[str, Any], limit: Limit, check: Callable[[], Mapping[str, Any]]) -> Advance:
        """The next step; `start` itself without new rows.

        `check` refuses a table that is not the same any more, in the view's snapshot; it returns what a position has of
        its partitions.
        """
        now = time.monotonic()
        if limit.upto is None and now - self._looked < self._poll_interval:
            return Advance(start, rows=0)
        end = self._end(start, limit)
        # In the snapshot of this step, or a later one: what is done to the table after it is seen the next time.
        there = check()
        count, noted = (0, {}) if end is None else digest(self._view, self._slice(start, end))
        if end is None or not count:
            self._looked = now
            self._view.release()
            return Advance(start, rows=0)
        most = rows_of(limit, self._relation)
        if most is not None and count > most:
            end = self._cut(start, end, most)
            count, noted = digest(self._view, self._slice(start, end))
        if there and check() != there:
            # Attached while the rows were counted, whose statement sees it in this snapshot already: another time.
            self._view.release()
            return Advance(start, rows=0)
        position = {**end, "open": True, **there, **noted}
        over = most is not None and count > most
        return Advance(position, rows=count, bytes=count * self._relation.width, whole=over)


class ByTransaction(Increments):
    """Rows by the transaction that wrote them."""

    def begin(self) -> dict[str, Any]:
        """The oldest transaction that has not ended."""
        return {"xid": self._view.take().least}

    def latest(self) -> dict[str, Any]:
        """The same."""
        found = self.begin()
        self._view.release()
        return found

    def _end(self, start: Mapping[str, Any], limit: Limit) -> dict[str, Any] | None:
        end = self._view.take().least
        if limit.upto is not None:
            end = min(end, limit.upto["xid"])
        return {"xid": end} if end > start["xid"] else None

    def _cut(self, start: Mapping[str, Any], end: Mapping[str, Any], rows: int) -> dict[str, Any]:
        # Between two transactions; one that wrote more rows than that is a step of its own.
        where = self._slice(start, end).where
        found = self._view.connection.execute(
            f"SELECT x, (SELECT min({XID}) FROM {self._relation.source} t WHERE {where}) FROM "
            f"(SELECT {XID} AS x FROM {self._relation.source} t WHERE {where}) r ORDER BY x OFFSET {rows} LIMIT 1"
        ).fetchone()
        if found is None:
            return dict(end)
        next_one, first = found
        return {"xid": next_one if next_one > first else first + 1}

    def passed(self, start: Mapping[str, Any]) -> tuple[str, str]:
        """Rows of older transactions."""
        return f"{XID} < {int(start['xid'])}", f"that were written before transaction {start['xid']}"

    def seek(self, at: Mapping[str, Any], position: Json) -> dict[str, Any]:
        """The number of a transaction that has ended, or an object with it as `xid`."""
        number = position.get("xid") if isinstance(position, dict) else position
        most = self._view.take().least
        self._view.release()
        return {"xid": number_in(number, 0, most, _TRANSACTION, self._view.who), **_kept_of(at)}


class ByColumn(Increments):
    """Rows by an increasing column."""

    _column: str

    def __init__(
        self, view: View, relation: Relation, column: str, poll_interval: int, settle_timeout: int, *, unique: bool
    ) -> None:
        super().__init__(view, relation, poll_interval)
        self._column, self._settle_timeout, self._unique = column, settle_timeout / 1000, unique

    def _repeats(self) -> bool:
        """Whether a row may come with a value that other rows have already."""
        return not self._unique and (self._column,) not in (self._relation.key.columns, *self._relation.unique)

    def _at(self, value: str | None) -> dict[str, Any]:
        """The position behind a value, or behind the one before it if that has too many rows; in the snapshot."""
        if value is None or not self._repeats():
            return {"value": value}
        if self._relation.has_xid:
            return {"value": value, "xid": self._view.held.least}
        key, equal = self._relation.key, f"t.{quoted(self._column)} = {literal(value)}"
        keys = self._view.connection.execute(
            f"SELECT {key.texts} FROM {self._relation.source} t WHERE {equal} LIMIT {MOST_KEYS + 1}"
        ).fetchall()
        if any(None in row for row in keys):
            raise null_key(self._relation, self._view.who)
        if len(keys) <= MOST_KEYS:
            return {"value": value, "keys": sorted(key.stored([str(part) for part in row]) for row in keys)}
        less = greatest_of(self._relation.source, self._column, f"t.{quoted(self._column)} < {literal(value)}")
        return {"value": self._view.text_of(f"SELECT {less}::text")}

    def begin(self) -> dict[str, Any]:
        """The greatest value, once it is at rest; of a view the one before it, whose keys need not be stored."""
        past = self._repeats() and not self._relation.has_xid
        value = self._view.wait_until_at_rest(self._relation, self._column, self._settle_timeout, past=past)
        return {"value": value} if past else self._at(value)

    def latest(self) -> dict[str, Any]:
        """The greatest value, at rest or not."""
        found = self._at(self._view.greatest(self._relation, self._column))
        self._view.release()
        return found

    def _end(self, start: Mapping[str, Any], limit: Limit) -> dict[str, Any] | None:
        if limit.upto is not None and limit.upto["value"] is None:
            return None
        value = self._view.at_rest(self._relation, self._column, start["value"])
        if value is None and not {"xid", "keys"} & start.keys():
            return None
        end = self._at(start["value"] if value is None else value)
        if end["value"] is None or all(end.get(part) == start.get(part) for part in ("value", "xid", "keys")):
            return None
        if limit.upto is None:
            return end
        upto = f"t.{quoted(self._column)} <= {literal(limit.upto['value'])}"
        value = self._greatest_of(self._slice(start, end).with_(upto))
        if value == limit.upto["value"]:
            return {part: limit.upto[part] for part in ("value", "xid", "keys") if part in limit.upto}
        return None if value is None else end if value == end["value"] else {"value": value}

    def _cut(self, start: Mapping[str, Any], end: Mapping[str, Any], rows: int) -> dict[str, Any]:
        # Between two values; a value of more rows than that is a step of its own.
        whole, name = self._slice(start, end), f"t.{quoted(self._column)}"
        found = self._view.connection.execute(
            f"SELECT {name}::text, {name} = {literal(end['value'])} FROM {self._relation.source} t WHERE {whole.where} "
            f"ORDER BY {name} OFFSET {rows} LIMIT 1"
        ).fetchone()
        if found is None:
            return dict(end)
        less = self._greatest_of(whole.with_(f"{name} < {literal(found[0])}"))
        # Below the end, a value has all of its rows.
        if less is None and found[1]:
            return dict(end)
        return {"value": found[0] if less is None else less}

    def _greatest_of(self, rows: Slice) -> str | None:
        found = self._view.connection.execute(
            f"SELECT {greatest_of(rows.source, self._column, rows.where)}::text"
        ).fetchone()
        return None if found is None else found[0]

    def passed(self, start: Mapping[str, Any]) -> tuple[str, str] | None:
        """Rows of values up to the last one."""
        if start["value"] is None:
            return None
        return up_to(self._column, start, self._relation.key), f"whose '{self._column}' is not above {start['value']}"

    def seek(self, at: Mapping[str, Any], position: Json) -> dict[str, Any]:
        """A value of the column that is not greater than all, or an object with it as `value`."""
        value = position.get("value") if isinstance(position, dict) else position
        text = None
        if not isinstance(value, bool) and isinstance(value, (str, int, float)):
            name = f"t.{quoted(self._column)}"
            # The union gives the text the column's own type.
            text = self._view.text_of(
                f"SELECT u.v::text FROM (SELECT {name} AS v FROM {self._relation.source} t WHERE false "
                f"UNION ALL SELECT {literal(str(value))}) u "
                f"WHERE u.v <= {greatest_of(self._relation.source, self._column)}"
            )
        if text is None:
            self._view.release()
            raise no_position(position, f"a value of '{self._column}', at most the greatest one", self._view.who)
        found = self._at(text)
        if found["value"] != text:
            found = {"value": text}
        self._view.release()
        if "xid" in found and isinstance(position, dict) and "xid" in position:
            found["xid"] = number_in(position["xid"], 0, found["xid"], _TRANSACTION, self._view.who)
        return {**found, **_kept_of(at)}
