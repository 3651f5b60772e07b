"""A job as one HTML file: the page of the server, with the document in it. Needs no FastAPI."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from spark_ext.server.assets import standalone
from spark_ext.views.page.document import page
from spark_ext.views.page.history import whole
from spark_ext.views.page.incidents import detail

if TYPE_CHECKING:
    from spark_ext.views.page.facts import Facts

POINTS: Final = 40_000
"""Points of all series together: a file is loaded once, and nothing more can be asked for."""

DETAILS: Final = 200
"""Incidents of which the file has the evidence: the newest ones."""


def documents(facts: Facts, now: datetime) -> dict[str, Any]:
    """What the file contains: the document, and the evidence of incidents by id.

    Args:
        now: UTC.
    """
    newest = whole(facts.incidents, facts.changes)[-DETAILS:]
    return {
        "page": page(facts, now, POINTS),
        "incidents": {row["incident_id"]: detail(row, facts.changes) for row in newest},
    }


def report(facts: Facts, now: datetime) -> str:
    """The HTML of a job's report.

    Args:
        facts: of the job, which was started at least once.
        now: UTC.
    """
    return standalone(documents(facts, now))
