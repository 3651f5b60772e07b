"""An exchange as the coordinator sees it: which entries the epochs of its producer have brought, and their rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from spark_ext.errors import RESET, StateError
from spark_ext.exchange.entries import EntryKind, LogState
from spark_ext.exchange.positions import Front, as_read_by, rows_before

if TYPE_CHECKING:
    from spark_ext.exchange.contract import ExchangeMaster
    from spark_ext.exchange.descriptor import Descriptor


class ExchangeView:
    """Follows the log of an exchange; a further look reads only what is new. For one thread."""

    def __init__(self, master: ExchangeMaster) -> None:
        self.master = master
        self._about: Descriptor | None = None
        self._state = LogState()
        self._next = -1
        self._begun = 0
        self._brought: dict[str, tuple[list[int], list[int]]] = {}
        """By application, epochs and the numbers of their entries, both ascending."""

    @property
    def state(self) -> LogState:
        """The state of the log at the last look."""
        return self._state

    @property
    def about(self) -> Descriptor:
        """What it is; known after a look that returned True."""
        assert self._about is not None
        return self._about

    def look(self) -> bool:
        """Read what is new; returns whether the exchange exists."""
        about = self.master.describe()
        if self._about is not None and (about is None or about.id != self._about.id):
            raise StateError(
                f"the exchange was deleted{' and created again' if about is not None else ''} while the job runs",
                operator=self._about.who,
                kept="nothing was released",
                do="stop the job, and restore the exchange's folder from a backup or, without one, discard the "
                f"history of the query that writes it with {RESET}",
            )
        self._about = about
        if about is None:
            return False
        log = self.master.log
        self._state = log.look()
        number = max(self._next, self._state.released)
        while number <= self._state.last:
            cut = self._state.cut_over(number)
            if cut is not None:
                # What it abandons need not exist.
                self._abandon(cut.after)
                self._begun, number = cut.number + 1, cut.number + 1
                continue
            entry = log.entry(number)
            if entry is not None and entry.kind is EntryKind.EPOCH:
                epochs, numbers = self._brought.setdefault(entry.application, ([], []))
                epochs.append(entry.epoch)
                numbers.append(number)
            number += 1
        self._next = self._state.last + 1
        return True

    def _abandon(self, after: int) -> None:
        for epochs, numbers in self._brought.values():
            kept = bisect_right(numbers, after)
            del epochs[kept:], numbers[kept:]

    def entries_upto(self, application: str, epoch: int) -> int:
        """How many entries belong to the epochs of a producer up to this one; the seal is not among them."""
        epochs, numbers = self._brought.get(application, ([], []))
        place = bisect_right(epochs, epoch)
        brought = numbers[place - 1] + 1 if place else 0
        if epoch < 0:
            return brought
        # What is released lies before a cut that was taken from looks as old as these at most, so it belongs to any
        # epoch that a cut can still contain. So does what was there when the producer's lineage began: after a restore,
        # the rows of an older one that consumers have still to read.
        begun = 0 if numbers and numbers[0] < self._begun else self._begun
        return max(brought, begun, self._state.released)

    def brought_between(self, begin: int, end: int) -> list[tuple[str, int]] | None:
        """The epochs with the entries `begin` to `end - 1`, as application and number; None: some were not there yet.

        Those are left out that are abandoned, or were released before the first look.
        """
        if end > self._state.last + 1:
            return None
        found: list[tuple[str, int]] = []
        for application, (epochs, numbers) in self._brought.items():
            found += [(application, epoch) for epoch in epochs[bisect_left(numbers, begin) : bisect_left(numbers, end)]]
        return found

    def rows_between(self, consumer: str, begin: Front, end: int) -> int | None:
        """Rows from a consumer's position to the entry before `end`; None when they are not known any more."""
        none = (0,) * len(begin.rows)
        first = Front(max(begin.entry, self._state.released), begin.rows)
        at = as_read_by(self.master.log.entry, consumer)
        try:
            return max(
                0,
                rows_before(at, self._state, Front(max(end, first.entry), none)) - rows_before(at, self._state, first),
            )
        except KeyError:
            return None
