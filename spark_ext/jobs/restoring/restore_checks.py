"""What a restore refuses before it changes anything: a savepoint that this job cannot continue from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from spark_ext.checkpoints.savepoint import UNCHANGED, Savepoint
from spark_ext.errors import ConfigurationError, SparkExtError, StateError
from spark_ext.jobs.composition import SINK, ChangeDeclarations
from spark_ext.jobs.starting.identity import Baseline
from spark_ext.model.changes import compare
from spark_ext.model.checkpoint_metadata import QueryMetadata
from spark_ext.model.dag import JobGraph
from spark_ext.model.definitions import QueryDefinition, Role


def saved_name(query: str, saved: Savepoint, declared: ChangeDeclarations) -> str:
    """The name that a query of the job has in the savepoint, if it is there at all."""
    return query if query in saved.metadata.queries else declared.renamed.get(query, query)


@dataclass(frozen=True)
class Comparison:
    """A savepoint, and the job that is to continue from it."""

    job: str
    saved: Savepoint
    given: Mapping[str, QueryDefinition]  # the queries of the job that can be built now
    waiting: frozenset[str]  # those that wait for the end of others
    graph: JobGraph
    declared: ChangeDeclarations
    in_place: bool  # whether the job is the one that the savepoint was taken of; another one writes elsewhere
    duplicates: frozenset[str] = (
        frozenset()
    )  # sinks whose targets may hold rows of the savepoint's job, and get them again

    @property
    def names(self) -> dict[str, str]:
        """The name in the savepoint of each query of the job that is in it."""
        found = {}
        for query in (*self.given, *self.waiting):
            name = saved_name(query, self.saved, self.declared)
            if name in self.saved.metadata.queries:
                found[query] = name
        return found

    def saved_query(self, query: str) -> QueryMetadata | None:
        """A query of the job, as the savepoint has it."""
        name = self.names.get(query)
        return None if name is None else self.saved.metadata.queries[name]

    def definition(self, query: str) -> QueryDefinition | None:
        """What a query of the job was made of when the savepoint was taken."""
        name = self.names.get(query)
        return None if name is None else self.saved.definitions.get(name)

    @property
    def finished(self) -> frozenset[str]:
        """The queries of the job that had finished."""
        return frozenset(query for query, name in self.names.items() if self.saved.metadata.queries[name].finished)

    def check(self) -> None:
        """Refuse what cannot continue."""
        for problem in self._problems():
            raise problem

    def check_start(self, starts: Collection[int | None]) -> None:
        """Refuse to restore in place what another copy of the state has taken.

        The copy's targets have numbers of versions and epochs that those of this state have too, with other rows.
        """
        about = self.saved.about
        if self.in_place and about.start and about.start not in starts:
            raise StateError(
                f"the savepoint was taken by incarnation {about.incarnation} of this job, in a start that this state "
                "does not know: the state is a copy of the one that was used then, or was put back from a backup, and "
                "its targets may hold other rows than those of the savepoint",
                operator=f"job '{self.job}', {self.saved.who}",
                kept=UNCHANGED,
                do="put the newest state and its targets back, and restore the savepoint again; or restore it into an "
                "empty state directory, with outputs of its own",
            )

    def check_position(self, query: str, uid: str) -> None:
        """Refuse to roll a target back that was not asked where it is.

        Without a position all is taken away that the sink has ever committed, which is right for a target that was not
        there yet; but the query continues behind the epochs that it had committed.
        """
        part = self.saved_query(query)
        sink = None if part is None else part.sinks.get(uid)
        if part is None or part.epoch is None or sink is None or sink.asked:
            return
        raise self._past.refusal(
            query,
            f"the savepoint does not say where the target of sink '{uid}' was after epoch {part.epoch}, which was "
            "committed: a release that did not record this has written it",
            "restore into another state directory, with outputs of its own; or, if what was written since may be "
            f"written again, restore with accept_duplicates=('{uid}',)",
        )

    def _problems(self) -> Iterator[SparkExtError]:
        yield from self._gone()
        for query in self.given:
            yield from self._moved(query)
            yield from self._changed(query)
            yield from self._same_target(query)
        yield from self._unfinished_upstream()

    @property
    def _past(self) -> Baseline:
        return Baseline(self.job, UNCHANGED, self.saved.who)

    def _gone(self) -> Iterator[SparkExtError]:
        there = set(self.names.values())
        for name, part in self.saved.metadata.queries.items():
            begun = part.finished or part.epoch is not None
            if begun and name not in there and name not in self.declared.removed:
                state = "had finished" if part.finished else f"had committed epoch {part.epoch}"
                yield self._past.gone(
                    name,
                    f"query '{name}' is in the savepoint, where it {state}, and is not in the job",
                    f"to restore without it, call job.remove('{name}') before job.restore",
                )

    def _moved(self, query: str) -> Iterator[SparkExtError]:
        own = self.names.get(query)
        for other, one in self.saved.definitions.items():
            part = self.saved.metadata.queries.get(other)
            if other != own and part is not None and (part.epoch is not None or part.finished):
                yield from self._past.moved(query, self.given[query], other, one.uids)

    def _changed(self, query: str) -> Iterator[SparkExtError]:
        part, before = self.saved_query(query), self.definition(query)
        if part is None or before is None or part.finished or part.epoch is None:
            return
        for change in compare(query, before, self.given[query]):
            sink = change.role is Role.SINK
            refusal = self._past.changed(query, change, () if sink else self.declared.accepted.get(query, ()))
            # Another job writes elsewhere.
            if refusal is not None and (self.in_place or not (sink and change.acceptable)):
                yield refusal

    def _same_target(self, query: str) -> Iterator[SparkExtError]:
        part, before = self.saved_query(query), self.definition(query)
        if self.in_place or part is None or before is None or part.finished or part.epoch is None:
            return
        for old, new in zip(before.of(Role.SINK), self.given[query].of(Role.SINK), strict=False):
            same = bool(old.identity) and (old.format, old.identity) == (new.format, new.identity)
            # Under the same uid no start would accept it: the target belongs to the other job.
            if not same or old.format.lower() == SINK or (new.uid != old.uid and new.uid in self.duplicates):
                continue
            where = ", ".join(f"{name} {value!r}" for name, value in sorted(new.identity.items()))
            yield ConfigurationError(
                f"sink '{new.uid}' writes to the target of the savepoint's job ({where}), which may "
                "hold rows from after the savepoint; they would be there twice",
                operator=self._past.operator(query),
                kept=UNCHANGED,
                do="let it write elsewhere; or restore in place, in the state directory of that job",
            )

    def _unfinished_upstream(self) -> Iterator[SparkExtError]:
        for upstream, query in self.graph.unfinished_upstreams(self.finished):
            yield self._past.refusal(
                query,
                f"query '{query}' had finished when the savepoint was taken, but query '{upstream}' upstream of it had "
                f"not: the rows of '{upstream}' would never be read",
                f"leave '{upstream}' out, let it write another exchange, or give '{query}' another uid",
            )
