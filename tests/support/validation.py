"""Runs the lifecycle validators over every job that a test has started in its own process."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from spark_ext.jobs.active_run import ActiveRun
from spark_ext.jobs.run_options import RunOptions
from tests.support import validators
from tests.support.history import History


@contextmanager
def validated_jobs(test: pytest.Item) -> Iterator[None]:
    """Record each job that starts; at the end stop those still running, and validate each state directory.

    The marker `without_validators` of the test names validators that do not apply to it.
    """
    from spark_ext.jobs.active_run import ActiveRun

    started: list[ActiveRun] = []
    start = ActiveRun.start

    def noted(run: ActiveRun, how: RunOptions) -> None:
        if run not in started:
            started.append(run)
        start(run, how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ActiveRun, "start", noted)
        yield
    for run in started:
        if run.runs and not run.done:
            with suppress(TimeoutError):
                run.stop(None)
    for state in dict.fromkeys(run.state_directory for run in started):
        if "://" not in state and Path(state, "ledger").is_dir():
            found = validate([run for run in started if run.state_directory == state], test)
            if found:
                pytest.fail("\n".join([f"the history of the job in {state} is not valid:", *found]), pytrace=False)


def validate(runs: list[ActiveRun], test: pytest.Item) -> list[str]:
    logs = {
        operator.options["log"]
        for run in runs
        for spec in run.composition.specs
        for operator in spec.operators
        if operator.options.get("log")
    }
    rows = {run.spec.uid: run.figures.state_rows for run in runs[-1].runs if not run.had_finished}
    history = History.read(Path(runs[0].state_directory), sorted(logs), state_rows=rows)
    marker = test.get_closest_marker("without_validators")
    return validators.problems(history, without=marker.args if marker is not None else ())
