"""The part of a job's face that takes the user's own incidents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from spark_ext.errors import StateError, refused
from spark_ext.incidents.registry import Registry
from spark_ext.jobs.steerable import Steerable
from spark_ext.masking import mask

if TYPE_CHECKING:
    from spark_ext.jobs.composition import Composition
    from spark_ext.ledger.write_behind import WriteBehind

REPORTED: Final = "reported by the user"
LONGEST: Final = 10_000
"""Characters of the text and of each label that are kept."""


class Reportable(Steerable):
    """What a job offers to whoever reports incidents; base of `Job`."""

    _registry: Registry
    _parts: Composition

    def report_incident(
        self, type: str, what: str, query: str | None = None, labels: Mapping[str, str] | None = None
    ) -> str:
        """Report an incident of a type of your own; safe for several threads, and does not wait for anything.

        Equal incidents of one type and query within the type's window are one, which is counted. It is resolved by the
        next committed epoch of the query (without one, of any query), by the end of the query, or, if its type says
        `resolved: report`, by `resolve_incident`.

        Args:
            type: declared in the file that the setting `incidents` names.
            what: what happened; its first line is shown in lists. Numbers in it do not make it another incident.
            query: uid of the query; None: the whole job.
            labels: by name; further texts by which it can be found.

        Returns:
            The incident's id: that of an earlier one if it is the same.

        Raises:
            ConfigurationError: the type is not declared, or the job has no such query; nothing was reported.
            StateError: the job does not run.
        """
        who = f"job '{self.name}', incident '{type}'"
        self._registry.refuse_undeclared(type, who)
        if query is not None and query not in self._parts.uids:
            raise refused(
                f"the job has no query '{query}'",
                who,
                f"use one of: {', '.join(self._parts.uids) or 'none yet'}",
                kept="nothing was reported",
            )
        operator = f"job '{self.name}'" + ("" if query is None else f", query '{query}'")
        given = {mask(str(name))[:LONGEST]: mask(str(value))[:LONGEST] for name, value in (labels or {}).items()}
        return self._reports(who).incident(operator, type, mask(str(what))[:LONGEST], REPORTED, labels=given)

    def resolve_incident(self, incident_id: str, cause: str = "") -> bool:
        """Say that an incident of yours is over.

        Args:
            incident_id: as `report_incident` has returned it, in this start of the job or an earlier one.
            cause: why; shown with the incident.

        Returns:
            Whether it was open.

        Raises:
            ConfigurationError: it is not an incident of a type of yours.
            StateError: the job does not run.
        """
        who = f"job '{self.name}', incident '{incident_id[:8]}'"
        incidents = self._reports(who).incidents
        entry = incidents.entry(incident_id)
        if entry is not None:
            self._registry.refuse_undeclared(entry.incident.type, who)
        return incidents.resolve(incident_id, cause or REPORTED)

    def _reports(self, who: str) -> WriteBehind:
        context = self._running()
        if context is None:
            raise StateError(
                "the job does not run, so nobody takes incidents",
                operator=who,
                kept="nothing was reported",
                do="report it between start() and the end of the job",
            )
        return context.write_behind
