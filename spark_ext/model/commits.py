"""Who commits what: the claim of a start, a task's attempt, and the identity of an epoch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from spark_ext.errors import RESET, FencedError, StateError


@dataclass(frozen=True)
class FenceMark:
    """Which start of a job may write: what a target remembers of the newest one, and what each commit asserts."""

    incarnation: int
    """Increases by one with each start; 0 outside a job, where nothing is fenced."""
    start: int = 0
    """Drawn at random at the start: two starts with one number are those of two copies of one state. 0: not known."""

    def covers(self, other: FenceMark) -> bool:
        """Whether a target that holds this mark is claimed by that very start."""
        return self.incarnation == other.incarnation and other.start in (0, self.start)

    def check(self, held: FenceMark | None, operator: str) -> None:
        """Compare the mark of a writer with the one that its target holds.

        Args:
            held: the target's; None when nobody has claimed it.
            operator: whose target it is, for messages.

        Raises:
            FencedError: the target belongs to a newer start, or to another one with the same number.
        """
        if held is None or not self.incarnation or held.incarnation < self.incarnation:
            return
        if held.incarnation > self.incarnation:
            raise FencedError(
                f"incarnation {held.incarnation} of the job has been started; this is incarnation {self.incarnation}",
                operator=operator,
                kept="everything committed so far; the newer incarnation continues from it",
                do="let the newer incarnation run; if none is running, this state is an older copy: start the job from "
                "the newest one",
            )
        if held.start and self.start and held.start != self.start:
            raise FencedError(
                f"incarnation {self.incarnation} of the job has been started twice, from two copies of its state, and "
                "the other start has claimed the target",
                operator=operator,
                kept="everything committed so far; the other start continues from it",
                do="find out which copy of the state directory is the right one, and start the job from it alone",
            )


DISCARD: Final = f"discard the query's history with {RESET}"
"""What can be done about rows that are lost."""

_PUT_BACK: Final = f"put the target back as it was and start the job again; if its rows are lost, {DISCARD}"


def not_the_target(found: str, operator: str, do: str = _PUT_BACK) -> StateError:
    """The error for a target that is not, or not any longer, the one that the job claimed and wrote to.

    Args:
        found: what was found instead, one sentence.
        operator: whose target it is.
        do: how it can be put back.
    """
    return StateError(
        f"this is not the target that was claimed: {found}. It was dropped, created again or put back to an earlier "
        "state",
        operator=operator,
        kept="nothing was written; what the target holds now is unchanged",
        do=do,
    )


_NEWEST_STATE: Final = f"start the job from the newest state; if that is lost, {DISCARD}"


@dataclass(frozen=True)
class Claim:
    """A start of the job: who may commit from now on."""

    sink: str
    """The sink's uid."""
    job: str
    job_id: str
    """Distinguishes two jobs of the same name: a target that holds another job's epochs under this uid is rejected."""
    incarnation: int
    """Increases by one with each start; older incarnations are fenced off."""
    lineage: int
    state: str = ""
    """Path or URI of the job's state directory, for a sink that stores data there."""
    start: int = 0
    """Random number of this start of the job; see `FenceMark`."""
    query_id: str | None = None
    """Spark's id of the query in this state; None before its first start."""
    planned: int | None = None
    """The newest epoch that this state knows to be planned: the newest of Spark's `offsets`; -1: none.
    None: not known, so nothing can be concluded from it."""
    previous: int | None = None
    """The newest epoch of this query that is known to be in the target; None: none is known to be."""
    starts: frozenset[int] | None = None
    """Random numbers of the earlier starts that this state remembers; None: not known."""
    restoring: bool = False
    """Whether `roll_back` follows, which may need files that look like what older incarnations have left: none is
    deleted yet."""
    siblings: Mapping[str, Any] = field(default_factory=dict)
    """With `restoring`: by uid, positions of the job's other sinks that write here and are rolled back too."""

    def known(self, epochs: Mapping[str, int]) -> dict[str, int]:
        """Per query id, the newest epoch of this sink in this lineage.

        Args:
            epochs: last epochs by `Epoch.application`, of any sinks and lineages.
        """
        prefix = f"spark_ext:{self.sink}:{self.lineage}:"
        return {name.removeprefix(prefix): last for name, last in epochs.items() if name.startswith(prefix)}

    @property
    def mark(self) -> FenceMark:
        """What the target has to remember."""
        return FenceMark(self.incarnation, self.start)

    def check_state(self, known: Mapping[str, int], held: FenceMark | None, operator: str) -> None:
        """Compare what the target holds with what this state knows: it may be neither ahead nor behind.

        A target that does not exist holds nothing. Numbers of epochs are not enough: a copy of this state may have
        committed an epoch with other rows under the number that this state has planned next. So the newest claim has
        to be that of a start which this state remembers.

        Args:
            known: per query id, the newest epoch that the target holds of this sink in this lineage.
            held: the mark of the newest claim in the target; None: never claimed.
            operator: whose target it is, for messages.

        Raises:
            StateError: the target holds epochs that this state has not planned. The state is older than the target:
                put back from a backup, copied, or without its checkpoint. Or it lacks epochs that were committed to it.
        """
        if self.planned is not None:
            self._refuse_ahead(known, self.planned, operator)
        if known and held is not None and held.start and self.starts is not None:
            self._refuse_foreign(held, self.starts, operator)
        newest = known.get(self.query_id or "", -1)
        if self.previous is not None and newest < self.previous:
            raise not_the_target(_behind(newest, self.previous), operator)

    def _refuse_foreign(self, held: FenceMark, starts: frozenset[int], operator: str) -> None:
        if held.start in starts or held.start == self.start:
            return
        raise StateError(
            f"the target was last claimed by incarnation {held.incarnation} of this job, in a start that this state "
            "does not know: the state is a copy of the one that was used then, or was put back from a backup",
            operator=operator,
            kept="the target is unchanged; nothing was started",
            do=_NEWEST_STATE,
        )

    def _refuse_ahead(self, known: Mapping[str, int], planned: int, operator: str) -> None:
        for query_id, epoch in sorted(known.items()):
            if query_id != self.query_id:
                raise StateError(
                    f"the target holds epoch {epoch} of this sink, written by a query whose checkpoint directory is "
                    "not the one in this state: the directory was deleted, or the state is a copy made before the "
                    "first start",
                    operator=operator,
                    kept="the target is unchanged; nothing was started",
                    do=_NEWEST_STATE,
                )
            if epoch > planned:
                raise StateError(
                    f"the target is ahead of this state: it holds epoch {epoch}, and the newest epoch that this state "
                    f"has planned is {planned}. The state is an older copy, or was put back from a backup",
                    operator=operator,
                    kept="the target is unchanged; nothing was started",
                    do=_NEWEST_STATE,
                )


@dataclass(frozen=True)
class Task:
    """One attempt at one partition of an epoch, on an executor."""

    sink: str
    query_id: str
    epoch: int
    partition: int
    attempt: int
    """Spark's task attempt id: unique within the Spark application."""
    incarnation: int
    """0 outside a job."""
    lineage: int
    start: int = 0
    """Random number of the job's start; 0 outside a job."""

    @property
    def mark(self) -> FenceMark:
        """Of the start that it works for."""
        return FenceMark(self.incarnation, self.start)


@dataclass(frozen=True)
class Epoch:
    """The identity of an epoch, the same for each attempt to commit it."""

    sink: str
    lineage: int
    query_id: str
    number: int
    incarnation: int
    """The incarnation that attempts the commit; not part of the identity."""
    final: bool = False
    """Whether it comes after the last row that was read, for a sink that `requires_finalization`. It may have rows that
    timers emit at the end."""
    start: int = field(default=0, compare=False)
    """Random number of the start that attempts the commit; 0 outside a job. Not part of the identity either."""
    previous: int | None = field(default=None, compare=False)
    """The newest epoch of this query that is known to be in the target; None: none is known to be."""
    barrier: int | None = field(default=None, compare=False)
    """The aligned checkpoint whose cut of the query is right after this epoch, if any."""
    watermark: int = field(default=0, compare=False)
    """The query's watermark in this epoch, ms since 1970 UTC, for a sink that `passes_watermarks`; 0: none."""
    early: bool = field(default=False, compare=False)
    """Whether the rows are those of windows that are open after this epoch, for a sink with an `early_key`: they
    replace others, fenced as ever, and the target does not record them as an epoch."""

    @property
    def mark(self) -> FenceMark:
        """What the commit asserts."""
        return FenceMark(self.incarnation, self.start)

    def check_target(self, held: FenceMark | None, last: int | None, operator: str) -> None:
        """Compare the target, at the moment of the commit, with the one that was claimed and written to.

        Args:
            held: the mark of the newest claim in the target; None: never claimed.
            last: the last epoch that it holds under `application`; None: none yet.
            operator: whose target it is, for messages.

        Raises:
            FencedError: the target belongs to a newer start, or to another one with the same number.
            StateError: it is not the target that this start has claimed, or it has lost epochs.
        """
        self.mark.check(held, operator)
        if self.start and (held is None or not held.covers(self.mark)):
            raise not_the_target(f"it does not hold the claim of incarnation {self.incarnation}", operator)
        found = -1 if last is None else last
        if self.previous is not None and found < self.previous:
            raise not_the_target(_behind(found, self.previous), operator)

    def is_held(self, last: int | None) -> bool:
        """Whether the target holds this epoch, or one whose rows are newer than early ones; `last` is its last one."""
        return last is not None and last >= self.number + self.early

    @property
    def application(self) -> str:
        """The identity without the number: an id under which a target keeps the last committed number."""
        return f"spark_ext:{self.sink}:{self.lineage}:{self.query_id}"


def _behind(held: int, previous: int) -> str:
    return f"epoch {previous} was committed to it, and it holds {f'epochs up to {held}' if held >= 0 else 'no epoch'}"


class CommitOutcome(Enum):
    """Result of a commit."""

    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
