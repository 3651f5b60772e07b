"""Compare the submitted job with its recorded definition, before anything is claimed. Pure.

Whatever has changed since the last start either leaves each query exactly where it was, or is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from spark_ext.errors import RESET, ConfigurationError, SparkExtError, StateError
from spark_ext.jobs.composition import ChangeDeclarations
from spark_ext.ledger.memory import JobMemory
from spark_ext.model.changes import Change, ChangeKind, compare
from spark_ext.model.definitions import QueryDefinition, Role
from spark_ext.queries.writer_checks import NOTHING_STARTED
from spark_ext.spark.logs.checkpoint_directory import state_of_checkpoint

UNCHANGED = "the state and all output are unchanged; nothing was started"


@dataclass(frozen=True)
class Baseline:
    """What a job is compared with: its last start, or a savepoint. Both refuse the same, with other ways out."""

    job: str
    kept: str = UNCHANGED
    savepoint: str = ""  # as messages name it; "": the last start

    def operator(self, query: str) -> str:
        """Where a query was refused."""
        return f"job '{self.job}', query '{query}'" + (f", {self.savepoint}" if self.savepoint else "")

    def refusal(self, query: str, what: str, do: str) -> StateError:
        """The error for a query that cannot continue."""
        return StateError(what, operator=self.operator(query), kept=self.kept, do=do)

    def gone(self, query: str, what: str, do: str) -> SparkExtError:
        """The refusal of a job that lacks a query."""
        return self.refusal(
            query,
            what,
            "add it again, as it was; if it has another uid now, say job.add(<new uid>, ..., "
            f"renamed_from='{query}'); {do}",
        )

    def moved(
        self, query: str, definition: QueryDefinition, other: str, uids: Collection[str]
    ) -> Iterator[SparkExtError]:
        """The refusals of operators that belonged to another query, which had those with the given uids."""
        when = " in the savepoint" if self.savepoint else ""
        for one in definition.operators:
            if one.uid in uids:
                yield self.refusal(
                    query,
                    f"{one.role} '{one.uid}' belongs to query '{other}'{when}, and is now in query '{query}', which "
                    "must not take over what it has read or written there",
                    f"move it back to '{other}', or give it another uid in '{query}'"
                    + self._once(f"; or let '{other}' begin again, which frees its uids: {_reset(other)}"),
                )

    def changed(self, query: str, change: Change, accepted: Collection[str]) -> SparkExtError | None:
        """The refusal of a change; None if the query can continue with it."""
        if not change.breaking or (change.acceptable and change.key in accepted):
            return None
        accept = f"say job.add('{query}', ..., accept=('{change.key}',))"
        if not change.acceptable:
            unfinished = "had not finished when the savepoint was taken" if self.savepoint else "has not finished"
            meaning = (
                f", and the query {unfinished}: Spark knows its sources by their places in the plan, and an offset "
                "belongs to one source"
            )
            do = "put the sources back as they were; read further input in a query of its own" + self._once(
                f"; or discard the query's history with {_reset(query)}"
            )
        elif change.kind is ChangeKind.STATE:
            meaning = ": results would mix what was computed before the change with what comes after it"
            do = "put the operator back as it was; " + self._once(
                f"restore a savepoint that was taken with the present one; begin again with {_reset(query)}; "
            )
            do += f"or, if both compute the same, {accept}"
        else:
            meaning = ": what was read so far would count as read in the new place"
            if change.role is Role.SINK:
                meaning = ": the epochs written so far are in the old place, and would be missing in the new one"
            do = "put it back as it was" + self._once(f"; to read or write elsewhere and begin again, {_reset(query)}")
            same = "it is the same data in another place"
            if change.name in ("mode", "key"):
                meaning = ": rows that were written by the former one could stay beside those that are to replace them"
                same = "no row of the target would be another's by the new one"
            if self.savepoint and change.role is Role.SINK:
                do += ", and change it after the restore; or restore into another state directory"
            else:
                do += f"; if {same}, {accept}"
        return ConfigurationError(f"{change}{meaning}", operator=self.operator(query), kept=self.kept, do=do)

    def _once(self, way_out: str) -> str:
        return "" if self.savepoint else way_out  # nobody resets a query of a savepoint


@dataclass(frozen=True)
class Logged:
    """What Spark's own log in a query's checkpoint directory says."""

    checkpoint: str  # the directory
    query_id: str | None = None  # None: it has no checkpoint
    planned: int = -1  # the newest planned epoch; -1: none
    committed: int = -1  # the newest committed epoch; -1: none
    control: int = 0  # the newest control event on which the newest planned epoch relies; 0: none
    state: bool = True  # whether there is a folder of a stateful operator


@dataclass(frozen=True)
class Notice:
    """Something that a start has to say, and does not refuse."""

    query: str
    what: str
    action: str


@dataclass(frozen=True)
class Start:
    """A job as it is given, and what is known of its queries."""

    job: str
    memory: JobMemory  # with the renames that the user asks for
    given: Mapping[str, QueryDefinition]  # the queries of the job, by uid
    logs: Mapping[str, Logged]  # of each query in the job or the ledger that has not finished
    declared: ChangeDeclarations
    moving: frozenset[str] = frozenset()  # as `uid.option`, what may change while an epoch is planned and not committed
    older: str = ""  # a driver that may still run, and commit to where a sink wrote until now; "" if none may
    waiting: frozenset[str] = frozenset()  # queries that are not built yet, as they wait for the end of others
    renames: Mapping[str, str] = field(default_factory=dict)  # those still to be recorded: former name by new name

    @property
    def _past(self) -> Baseline:
        return Baseline(self.job)

    def begun(self, query: str) -> bool:
        """Whether a query has history that must not be repeated."""
        known = self.memory.of(query)
        return known.committed >= 0 or known.input_done or bool(known.flags) or self._logged(query).planned >= 0

    def _logged(self, query: str) -> Logged:
        return self.logs.get(query, Logged(""))

    def exchanged(self) -> frozenset[str]:
        """Queries whose sink is another one, on request."""
        return frozenset(
            query
            for query, known in ((query, self.memory.of(query)) for query in self.given)
            if known.definition is not None and not known.finished and self.begun(query)
            for change in compare(query, known.definition, self.given[query])
            if change.role is Role.SINK and change.acceptable and change.key not in self.moving
        )

    # -- refusals -----------------------------------------------------------------------------------------------------

    def check(self) -> tuple[Notice, ...]:
        """Refuse what cannot continue; returns what is worth a line nevertheless."""
        for problem in self.problems():
            raise problem
        return tuple(self.notices())

    def check_late(self, query: str) -> None:
        """Refuse a query that has no history, and comes to a running job, for what belongs to another one."""
        for problem in (*self._moved(query, self.given[query]), *self._left_out(query)):
            raise problem

    def problems(self) -> Iterator[SparkExtError]:
        """Why the job cannot continue."""
        gone = sorted(name for name in self.memory.names if name not in self.given and self.begun(name))
        for query in gone:
            yield from self._too_early(query) if query in self.waiting else self._gone(query)
        for query, definition in self.given.items():
            yield from self._moved(query, definition)
        for query, definition in self.given.items():
            yield from self._changed(query, definition)
        for query in self.given:
            yield from self._lost(query)
            yield from self._left_out(query)

    def _too_early(self, query: str) -> Iterator[SparkExtError]:
        yield self._past.refusal(
            query,
            f"query '{query}' has begun in an earlier start, and is to be built only after queries that have not "
            "finished now: one of them was reset without it, or is another one",
            f"name in `after` the queries that it had waited for; or discard its history too: {_reset(query)}",
        )

    def _gone(self, query: str) -> Iterator[SparkExtError]:
        known = self.memory.of(query)
        lives = {uid: other for other, one in self.given.items() for uid in one.uids & known.uids}
        if lives:
            uid, other = sorted(lives.items())[0]
            rest = f" and {len(lives) - 1} more" if len(lives) > 1 else ""
            yield self._past.refusal(
                other,
                f"query '{query}' is no longer in the job, but its operator '{uid}'{rest} is in query '{other}': "
                "what it has read would be read again, and written again",
                f"if '{other}' is '{query}' under another uid, say job.add('{other}', ..., "
                f"renamed_from='{query}'); to begin again, {_reset(query)}; "
                f"otherwise give the operators of the new query uids of their own, and say job.remove('{query}')",
            )
        elif not (known.finished or known.removed or query in self.declared.removed):
            yield self._past.gone(
                query,
                f"query '{query}' has not finished, and is no longer in the job",
                f"to abandon it, say job.remove('{query}') before the start",
            )

    def _moved(self, query: str, definition: QueryDefinition) -> Iterator[SparkExtError]:
        for other in sorted(self.memory.names - {query}):
            if other in self.given and self.begun(other):
                # A finished query keeps the uids with which it ran, whatever it is given now.
                yield from self._past.moved(query, definition, other, self.memory.of(other).uids)

    def _changed(self, query: str, definition: QueryDefinition) -> Iterator[SparkExtError]:
        known = self.memory.of(query)
        if known.definition is None or known.finished or not self.begun(query):
            return
        for change in compare(query, known.definition, definition):
            refusal = self._past.changed(query, change, self.declared.accepted.get(query, ()))
            if refusal is not None:
                yield refusal
            elif change.breaking:
                yield from self._in_doubt(query, change)

    def _in_doubt(self, query: str, change: Change) -> Iterator[SparkExtError]:
        logged = self._logged(query)
        if change.role is not Role.SINK or change.key in self.moving:
            return
        if self.older:
            yield self._past.refusal(
                query,
                f"{change}, while an earlier driver may still run ({self.older}): it could commit an epoch in the old "
                "place, where this start does not fence it off, and it would be written to the new one as well",
                "start the job once as it was, stop it, and change it then",
            )
        if logged.planned > logged.committed:
            yield self._past.refusal(
                query,
                f"{change}, while epoch {logged.planned} is planned and not committed: it may be in the old place "
                "already, and would be written to the new one as well",
                "start the job once as it was, until that epoch is committed, stop it, and change it then",
            )

    def _lost(self, query: str) -> Iterator[SparkExtError]:
        known, logged = self.memory.of(query), self._logged(query)
        if known.finished or known.committed < 0:
            return
        if known.definition is not None and known.definition.state and logged.query_id and not logged.state:
            yield self._past.refusal(
                query,
                f"the state of this query is missing: {logged.checkpoint}/state has no folder of an operator, and "
                f"epochs up to {known.committed} are committed",
                "put the folder back; restore the job from a savepoint or a retained checkpoint; or discard the "
                f"history with {_reset(query)}",
            )
        other = known.query_id is not None and logged.query_id != known.query_id
        if other or logged.committed < known.committed:
            state = state_of_checkpoint(logged.query_id, logged.committed, other=other)
            yield self._past.refusal(
                query,
                f"the checkpoint directory of this query {state}: the ledger has committed epochs up to "
                f"{known.committed}, and a new checkpoint would write them a second time",
                f"restore the directory ({logged.checkpoint}), or discard the history with {_reset(query)}",
            )

    def _left_out(self, query: str) -> Iterator[SparkExtError]:
        if self.memory.of(query).left_out and not self.begun(query):
            yield _left_out(query, self._past.operator(query))

    # -- notices ------------------------------------------------------------------------------------------------------

    def notices(self) -> Iterator[Notice]:
        """What is worth a line nevertheless."""
        for query, definition in self.given.items():
            known = self.memory.of(query)
            if known.definition is None or not self.begun(query):
                continue
            changes = compare(query, known.definition, definition)
            if known.finished and changes:
                yield Notice(
                    query,
                    f"it has finished, and has changed since: {'; '.join(map(str, changes))}",
                    f"nothing of it is started; job.reset('{query}', cascade=True) or another uid runs it again",
                )
            elif not known.finished:
                accepted = self.declared.accepted.get(query, ())
                for change in changes:
                    if change.acceptable and change.key in accepted:
                        yield Notice(query, str(change), "accepted on request")


def renames(job: str, memory: JobMemory, given: Iterable[str], declared: ChangeDeclarations) -> dict[str, str]:
    """The renames that are still to be done: former name by new name."""
    if not memory.ever:
        # The job's first start in this state directory: a script may contain renames of another one.
        return {}
    to_do = {}
    present = frozenset(given)
    for query, old in declared.renamed.items():
        if memory.lineages.renamed(query, old):
            continue
        operator = Baseline(job).operator(query)
        if memory.of(old).left_out:
            raise _left_out(old, operator)
        if old not in memory.names and old in memory.ever:
            continue  # its history was discarded, by a reset or a restore: there is nothing to take over
        if old not in memory.names:
            raise unknown(old, memory, operator, "renamed_from")
        if old in present:
            raise ConfigurationError(
                f"query '{old}', the former uid of this one, is in the job as well",
                operator=operator,
                kept=NOTHING_STARTED,
                do=f"leave out renamed_from='{old}', or give the other query a uid that was not used before",
            )
        former = memory.lineages.names(old, memory.lineage(old))
        if query in memory.names or (query in memory.used and query not in former):
            raise ConfigurationError(
                f"query '{query}' has a history of its own, which that of '{old}' cannot replace",
                operator=operator,
                kept=NOTHING_STARTED,
                do=f"give query '{old}' a uid that was not used before",
            )
        to_do[query] = old
    return to_do


def _left_out(query: str, operator: str) -> StateError:
    return StateError(
        f"query '{query}' was left out when the job was restored in place: what it had written was not put back, and "
        "would be written again",
        operator=operator,
        kept=UNCHANGED,
        do=f"restore the savepoint again with the query in the job; or {_reset(query)}",
    )


def refuse_unknown(job: str, memory: JobMemory, declared: ChangeDeclarations) -> None:
    """Refuse the removal of a query that never was in the job."""
    for query in sorted(declared.removed if memory.ever else ()):
        if query not in memory.ever:
            raise unknown(query, memory, f"job '{job}'", "remove")


def unknown(query: str, memory: JobMemory, operator: str, word: str) -> ConfigurationError:
    """The refusal of a name that the ledger does not know."""
    known = ", ".join(f"'{name}'" for name in sorted(memory.ever)) or "none"
    return ConfigurationError(
        f"{word} names the query '{query}', which this job never had; its queries so far: {known}",
        operator=operator,
        kept=NOTHING_STARTED,
        do="correct the name",
    )


def to_record(start: Start, query: str) -> bool:
    """Whether the definition of a query is to be written down: when it is another one, or the query was removed."""
    known = start.memory.of(query)
    return not known.finished and (known.definition is None or known.removed or known.definition != start.given[query])


def _reset(query: str) -> str:
    return RESET.replace("<query>", query)
