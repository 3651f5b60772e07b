"""Control events follow a query that gets another uid: what stood for the old one stands for the new one.

The rename is a fact of the ledger first. One control event per rename then moves the targets; a start that finds a
rename without its event adds it, before a query runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_ext.control.job_events import request
from spark_ext.model.control import Event, Scope, Target
from spark_ext.model.control_kinds import kinds

if TYPE_CHECKING:
    from spark_ext.control.log import ControlLog
    from spark_ext.model.configuration import Configuration
    from spark_ext.model.lineages import Lineages


def add_events(control: ControlLog, known: Lineages) -> Callable[[Event], Event]:
    """Add the events of renames that have none yet; returns what gives an earlier event the target that it has now."""
    if not known.renames:
        return lambda event: event
    last = 0
    done = control.configuration().renames
    for rename in known.renames:
        if rename.lineage > done:
            value = {"old": rename.old, "new": rename.new, "lineage": rename.lineage}
            last = request(control, "job", "renamed", value).sequence
    return lambda event: present(event, known) if not last or event.sequence < last else event


def with_renames(found: Configuration, known: Lineages, wanted: Mapping[str, str]) -> Configuration:
    """The configuration as it will be once the job has been started."""
    for rename in known.renames:
        found = found.with_rename(rename.old, rename.new, rename.lineage)
    for new, old in wanted.items():
        if not known.renamed(new, old):
            found = found.readdressed(old, new)
    return found


def present(event: Event, known: Lineages) -> Event:
    """An event with the target that it has by now. What is obeyed once is not done by a query of another name."""
    kind = kinds().get(event.kind)
    if event.target.scope is not Scope.QUERY or kind is None or not kind.standing:
        return event
    return replace(event, target=Target(Scope.QUERY, known.present_name(event.target.uid, event.lineage)))


def addressed_to_nobody(found: Configuration, queries: Collection[str], sources: Collection[str]) -> tuple[str, ...]:
    """Targets for which something stands, and which a job does not have: it is in force nowhere."""
    known = {Scope.QUERY: queries, Scope.SOURCE: sources, Scope.CHANNEL: sources}
    written = sorted({target for targets in found.standing.values() for target in targets})
    targets = [Target.parse(target) for target in written]
    return tuple(str(one) for one in targets if one.scope in known and one.uid not in known[one.scope])
