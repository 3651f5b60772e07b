"""What a user says of a change of the job, so that the start need not guess. Immutable."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from spark_ext.errors import ConfigurationError
from spark_ext.queries.writer_checks import NOTHING_STARTED


@dataclass(frozen=True)
class Wishes:
    """Renames, accepted changes, and queries that are abandoned on purpose."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Former names by query."""
    accepted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Per query, what of it may differ from what it was: `uid.option`."""
    removed: frozenset[str] = frozenset()

    def with_query(self, job: str, query: str, renamed_from: str | None, accept: Collection[str]) -> Wishes:
        """What was said of a query when it was added.

        Raises:
            ConfigurationError: it contradicts itself, or what was said before.
        """
        who = f"job '{job}', query '{query}'"
        if isinstance(accept, str):
            accept = (accept,)
        for change in accept:
            if not all(change.rpartition(".")[::2]):
                raise ConfigurationError(
                    f"'{change}' does not name an option of an operator",
                    operator=who,
                    kept=NOTHING_STARTED,
                    do="write the operator's uid, a dot, and the option, such as accept=('orders.path',)",
                )
        if renamed_from is not None and (renamed_from == query or renamed_from in self.renamed.values()):
            wrong = "is this query's own uid" if renamed_from == query else "was given for two queries"
            raise ConfigurationError(
                f"renamed_from='{renamed_from}' {wrong}",
                operator=who,
                kept=NOTHING_STARTED,
                do="name the uid under which this query ran before, once",
            )
        if query in self.removed:
            raise _added_and_removed(job, query)
        renamed = self.renamed if renamed_from is None else {**self.renamed, query: renamed_from}
        return replace(self, renamed=renamed, accepted={**self.accepted, query: frozenset(accept)})

    def with_removed(self, job: str, query: str) -> Wishes:
        """A query is abandoned.

        Raises:
            ConfigurationError: it is in the job.
        """
        if query in self.accepted:
            raise _added_and_removed(job, query)
        return replace(self, removed=self.removed | {query})


def _added_and_removed(job: str, query: str) -> ConfigurationError:
    return ConfigurationError(
        "the query is added to the job and removed from it",
        operator=f"job '{job}', query '{query}'",
        kept=NOTHING_STARTED,
        do="leave out job.add(...) or job.remove(...)",
    )
