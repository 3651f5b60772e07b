"""Runs the lifecycle validators over every job that a test has started in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import validators
from tests.support.history import History

if TYPE_CHECKING:
    from spark_ext.jobs.job import Job
    from spark_ext.jobs.run_options import RunOptions


@contextmanager
def validated_jobs(test: pytest.Item) -> Iterator[None]:
    """Record each job that starts; at the end stop those still running, and validate each state directory.

    Args:
        test: its marker `without_validators` names validators that do not apply to it.
    """
    from spark_ext.jobs.job import Job

    started: list[Job] = []
    start = Job._start

    def noted(job: Job, how: RunOptions) -> Job:
        if job not in started:
            started.append(job)
        return start(job, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "_start", noted)
        yield
    for job in started:
        if job.runs and not job.done:
            with suppress(TimeoutError):
                job.stop()
    for state in dict.fromkeys(job.state_directory for job in started):
        if "://" not in state and Path(state, "ledger").is_dir():
            found = validate([job for job in started if job.state_directory == state], test)
            if found:
                pytest.fail("\n".join([f"the history of the job in {state} is not valid:", *found]), pytrace=False)


def validate(jobs: list[Job], test: pytest.Item) -> list[str]:
    """Faults in the history of the jobs of one state directory."""
    logs = {
        operator.options["log"]
        for job in jobs
        for spec in job._parts.specs
        for operator in spec.operators
        if operator.options.get("log")
    }
    rows = {run.spec.uid: run.figures.state_rows for run in jobs[-1].runs if not run.had_finished}
    history = History.read(Path(jobs[0].state_directory), sorted(logs), state_rows=rows)
    marker = test.get_closest_marker("without_validators")
    return validators.problems(history, without=marker.args if marker is not None else ())
