"""How a job looks in a notebook."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_ext.jobs.job import Job


def job_html(job: Job) -> str:
    """A job as a small table: one row per query."""
    rows = "".join(
        f"<tr><td>{html.escape(run.spec.uid)}</td><td>{run.state.value}</td><td>{run.committed}</td>"
        f"<td>{run.figures.input_rows:,}</td><td>{html.escape(run.reason)}</td></tr>"
        for run in job.runs
    )
    return (
        f"<b>{html.escape(job.name)}</b> {job.state.value} &middot; state in {html.escape(job.state_directory)}"
        f"<table><tr><th>query</th><th>state</th><th>epoch</th><th>rows</th><th>why</th></tr>{rows}</table>"
    )
