"""The command line: commands that run, save, restore or rescale the job of a file, and commands that read its state.

Those with FILE start Spark; those with STATE read the state directory with delta-rs alone. `spark_ext.commands` has
those that change a running job or serve it, and all exit codes.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import traceback
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_ext.commands import check, check_notify, classify, control_group, incidents, ingest, prepare, serve, show
from spark_ext.commands import control_send as control_send  # adds its commands to the group, as control_show does
from spark_ext.commands import control_show as control_show
from spark_ext.commands.output import FAILED as FAILED
from spark_ext.commands.output import (
    REFUSED,
    RUNNING,
    STOPPED,
    UNREACHABLE,
    Json,
    SessionStorage,
    State,
    Storage,
    pairs,
    print_error,
    print_json,
    print_rows,
    print_text,
    session_storage,
    storage_options,
)
from spark_ext.errors import ConfigurationError, JobFailedError, JobRunningError, SparkExtError, TransientError, refused
from spark_ext.spark.backend.process import announced, interrupts_as_before

if TYPE_CHECKING:
    from spark_ext.jobs.job import Job
    from spark_ext.ledger.schema import Row


UntilChoice = Enum("UntilChoice", {"NOW": "now"}, type=str)
EmitChoice = Enum("EmitChoice", {"CLOSED": "closed", "EARLY": "early", "ALL": "all"}, type=str)
IfRunningChoice = Enum("IfRunningChoice", {"REFUSE": "refuse", "WAIT": "wait"}, type=str)

UntilOption = Annotated[
    UntilChoice | None, typer.Option("--until", help="'now': read the input that is available at the start, and exit.")
]
EmitOption = Annotated[
    EmitChoice,
    typer.Option(
        "--emit",
        help="With --until now: 'closed' leaves open windows to the next run; 'early' does, and shows them as they are "
        "in targets with mode=upsert; 'all' emits them and ends the job.",
    ),
]
IfRunningOption = Annotated[
    IfRunningChoice | None,
    typer.Option(
        "--if-running", help="If another run of the job is in progress: refuse to start, or wait for its end."
    ),
]
WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait-timeout", metavar="SECONDS", help="With --if-running wait: maximum time to wait. Default: no limit."
    ),
]


app = typer.Typer(
    name="spark-ext",
    help="Run and inspect jobs of Spark streaming queries.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[
    Path, typer.Argument(help="A Python file, or a notebook exported as one, that defines the job.", show_default=False)
]
Function = Annotated[str, typer.Option(help="Function in FILE that takes a SparkSession and returns a Job.")]
Master = Annotated[str | None, typer.Option(help="A Spark master. Default: $SPARK_MASTER, or local[*].")]


def console() -> None:
    """Entry point of the process: `main`, then flush, and exit at once.

    The interpreter would first tear itself down while threads of native libraries still run. Some of these then hang or
    abort the process (Arrow's issues 34314 and 50482), and a scheduler would see a finished job fail.
    """
    end = _End()
    atexit.register(end)  # registered first, so it runs last
    try:
        main()
        end.code = 0
    except SystemExit as given:
        end.code = given.code if isinstance(given.code, int) else int(given.code is not None)
        raise


class _End:
    code: int | None = None

    def __call__(self) -> None:
        if self.code is None:
            return
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.code)


def main() -> None:
    """The command line. An error of spark-ext is shown as its message, without a traceback."""
    try:
        app()
    except SparkExtError as problem:
        print_error(problem)
        raise SystemExit(_code(problem)) from None
    except Exception as problem:
        from spark_ext.spark.session.environment import explained
        from spark_ext.spark.session.short_errors import is_library, ours

        found = ours(explained(problem) if isinstance(problem, ImportError) else problem)
        if found is not None:
            print_error(found)
            raise SystemExit(_code(found)) from None
        # An error of the user's file: from there on, without this command line's own frames.
        trace = problem.__traceback__
        while trace is not None and is_library(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        traceback.print_exception(type(problem), problem, trace or problem.__traceback__)
        raise SystemExit(FAILED) from None


def _code(problem: SparkExtError) -> int:
    """The exit code: schedulers may retry if something could not be reached."""
    codes = {JobFailedError: FAILED, JobRunningError: RUNNING, TransientError: UNREACHABLE}
    return next((code for kind, code in codes.items() if isinstance(problem, kind)), REFUSED)


app.add_typer(control_group.app, name="control")
app.add_typer(ingest.app, name="ingest")
app.command("serve")(serve.serve)
app.command("check")(check.check)
app.command("classify")(classify.classify)
app.command("incidents")(incidents.incidents)
app.command("init")(prepare.init)
app.command("notify-test")(check_notify.notify_test)
app.command("plot")(show.plot)
app.command("prepare")(prepare.prepare)
app.command("report")(show.report)
app.command("timeline")(show.timeline)
app.command("top")(show.top)
app.add_typer(serve.tokens, name="token")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spark-ext {version('spark-ext')}")
        raise typer.Exit


@app.callback()
def _common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if any(name.startswith("SPARK_EXT_") for name in os.environ):
        from spark_ext.settings import refuse_unread

        refuse_unread((), os.environ, "the environment")


@app.command()
def run(
    file: File,
    function: Function = "job",
    master: Master = None,
    until: UntilOption = None,
    emit: EmitOption = EmitChoice.CLOSED,
    if_running: IfRunningOption = None,
    wait_timeout: WaitOption = None,
    short_lived: Annotated[
        bool,
        typer.Option("--short-lived", help="For runs of seconds or a few minutes: start faster, process more slowly."),
    ] = False,
    storage: SessionStorage = None,
    progress: Annotated[bool, typer.Option(help="Show progress on standard error.")] = True,
    as_json: Json = False,
) -> None:
    """Run the job that a file defines until it ends, or with --until now until it has read the available input.

    Ctrl-C stops it in order; run it again to resume. A finished job reads nothing. The exit code is 0 if the job has
    finished or read the available input, 3 if it was stopped, 1 if it failed, 2 if the start was refused, 8 if
    something that it needs could not be reached, and 9 if another run of it is in progress.
    """
    try:
        made = _job(file, function, master, storage, short_lived=short_lived, progress=progress)
        result = made.run(
            until=None if until is None else until.value,
            emit=emit.value,
            if_running=None if if_running is None else if_running.value,
            wait_timeout=wait_timeout,
            progress=progress,
        )
    except KeyboardInterrupt:  # before the job could stop in order, or for the second time
        print_text("interrupted at once; what is committed stays: run it again to continue", error=True)
        raise typer.Exit(STOPPED) from None
    if as_json:
        print_json(result.to_json())
    else:
        print_text(str(result))
    if not (result.finished or result.caught_up):
        raise typer.Exit(STOPPED)


@app.command()
def plan(
    file: File,
    function: Function = "job",
    master: Master = None,
    until: UntilOption = None,
    emit: EmitOption = EmitChoice.CLOSED,
    storage: SessionStorage = None,
    as_json: Json = False,
) -> None:
    """Show what a start of the job would refuse, change and read, without starting it. Nothing is written.

    The exit code is 0 if there is nothing to object, 1 if the start would be refused, 9 if that is only because another
    run of the job is in progress, and 2 if the file is refused.
    """
    made = _job(file, function, master, storage)
    found = made.plan(until=None if until is None else until.value, emit=emit.value)
    if as_json:
        print_json(found.to_json())
    else:
        print_text(str(found))
    if found.refusals:
        running = all(isinstance(one, JobRunningError) for one in found.refusals)
        raise typer.Exit(RUNNING if running else FAILED)


@app.command()
def savepoint(
    file: File,
    path: Annotated[str, typer.Argument(help="The savepoint's folder: a path or URI, empty or missing.")],
    function: Function = "job",
    master: Master = None,
    storage: SessionStorage = None,
) -> None:
    """Take a savepoint of a job that is not running; this job or another one can continue from it.

    A running job takes one with job.savepoint(path), job.stop(savepoint=path), or spark-ext control.
    """
    number = _job(file, function, master, storage).savepoint(path)
    print_text(f"savepoint {number} is complete: {path}")


@app.command()
def restore(
    file: File,
    savepoint: Annotated[
        str, typer.Argument(help="The savepoint's folder, or the number of a retained checkpoint of this job.")
    ],
    accept_duplicates: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SINK", help="A sink whose target may receive rows twice; for one of Spark's own sinks, the query."
        ),
    ] = None,
    state_partitions: Annotated[
        list[str] | None, typer.Option(metavar="QUERY=N", help="Give the state of a query N partitions.")
    ] = None,
    function: Function = "job",
    master: Master = None,
    storage: SessionStorage = None,
) -> None:
    """Restore a job from a savepoint; its next run continues from there.

    In the state directory of the savepoint, the job's tables and exchanges are rolled back. In an empty state
    directory it becomes a job of its own. To complete an interrupted restore, repeat the command.
    """
    given = pairs(state_partitions, "QUERY=N", "--state-partitions")
    bad = next((text for text in given.values() if not text.isdecimal()), None)
    if bad is not None:
        raise typer.BadParameter(f"'{bad}' is not a number of partitions", param_hint="--state-partitions")
    _job(file, function, master, storage).restore(
        int(savepoint) if savepoint.isdecimal() else savepoint,
        accept_duplicates=accept_duplicates or (),
        state_partitions={query: int(number) for query, number in given.items()},
    )
    print_text(f"restored from {savepoint}: run the job to continue from there")


@app.command()
def rescale(
    file: File,
    query: Annotated[str, typer.Argument(help="The query's uid, or exchange:NAME.")],
    partitions: Annotated[int, typer.Argument(help="New number of partitions.")],
    key: Annotated[list[str] | None, typer.Option(help="A column of the exchange's new key; may be repeated.")] = None,
    function: Function = "job",
    master: Master = None,
    storage: SessionStorage = None,
) -> None:
    """Change the number of partitions of a query's state, or of an exchange, of a stopped job."""
    _job(file, function, master, storage).rescale(query, partitions, key=key)
    kind, _, name = query.rpartition(":")
    print_text(f"{kind or 'the state of query'} '{name}' has {partitions} partitions: run the job to continue")


@app.command()
def status(state: State, as_json: Json = False, storage: Storage = None) -> None:
    """Show a job's state, queries, newest incidents and timeline. The exit code is 2 if its ledger is damaged."""
    from spark_ext.jobs.linking.inbox_figures import inboxes_now
    from spark_ext.views.status import read_status

    options = storage_options(storage)
    found = read_status(state, options, lambda facts: inboxes_now(facts, options))
    if as_json:
        print_json(found.to_json())
    else:
        from spark_ext.views.terminal import Terminal, show_status

        show_status(found, Terminal())
    if found.damage:
        raise typer.Exit(REFUSED)


@app.command()
def finished(state: State, as_json: Json = False, storage: Storage = None) -> None:
    """List the finished flags: which channels, sources and queries have finished, and in which epoch."""
    from spark_ext.ledger.schema import FinishedRow

    columns = ("kind", "query", "source", "channel", "epoch", "lineage", "incarnation", "drained", "at")
    rows = _rows(state, storage, FinishedRow, columns)
    rows.sort(key=lambda row: (row["at"], row["query"], row["source"], row["channel"]))
    print_rows(rows, columns, as_json=as_json)


@app.command()
def epochs(
    state: State,
    query: Annotated[str | None, typer.Option(help="Only this query's uid.")] = None,
    last: Annotated[int, typer.Option(min=0, metavar="N", help="Only the newest N of each query; 0 for all.")] = 0,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """List the committed epochs, oldest first."""
    from spark_ext.ledger.schema import EpochRow

    columns = ("query", "epoch", "input_rows", "duration_ms", "committed_at", "lineage", "incarnation")
    rows = _rows(state, storage, EpochRow, columns)
    uids = sorted({row["query"] for row in rows})
    if query is not None:
        if query not in uids:
            raise ConfigurationError(
                f"the ledger has no epoch of query '{query}'",
                operator=f"query '{query}'",
                kept="nothing was changed",
                do=f"use one of: {', '.join(uids) or 'none yet: no epoch has been committed'}",
            )
        uids = [query]
    rows.sort(key=lambda row: (row["lineage"], row["epoch"]))
    chosen = [row for uid in uids for row in [own for own in rows if own["query"] == uid][-last:]]
    chosen.sort(key=lambda row: (row["committed_at"], row["query"], row["epoch"]))
    print_rows(chosen, columns, as_json=as_json)


@app.command()
def schema(
    location: Annotated[str, typer.Argument(metavar="PATH", help="The option 'schema_location' of a source.")],
    as_json: Json = False,
) -> None:
    """Print the columns that a source of files has inferred, as DDL for `.schema(...)`."""
    from spark_ext.sources.files.inferred import FrozenSchema

    found = FrozenSchema.find(location, "schema")
    if found is None:
        raise refused(f"'{location}' does not exist", "schema", "name a schema_location", kept="nothing was changed")
    if as_json:
        print_json({"path": found.place, "columns": {one.name: one.dataType.simpleString() for one in found.columns}})
    else:
        print_text(found.ddl)


@app.command()
def checkpoints(
    state: State,
    last: Annotated[int, typer.Option(min=0, metavar="N", help="Only the newest N; 0 for all.")] = 0,
    as_json: Json = False,
    storage: Storage = None,
) -> None:
    """List the checkpoints and savepoints of the whole job, oldest first, with the folders of those that are kept.

    A restore adds a row with its own number, the new lineage, and the savepoint's folder.
    """
    from spark_ext.ledger.schema import CheckpointRow

    about = ("checkpoint_id", "kind", "mode", "status", "lineage")
    columns = (*about, "triggered_at", "at", "rows_in_flight", "path", "reason")
    rows = _rows(state, storage, CheckpointRow, (*columns, "query"))
    rows = [row for row in rows if row.pop("query") == ""]
    rows.sort(key=lambda row: (row["checkpoint_id"], row["at"]))
    numbers = sorted({row["checkpoint_id"] for row in rows})[-last:]
    print_rows([row for row in rows if row["checkpoint_id"] in numbers], columns, as_json=as_json)


def _job(
    file: Path,
    function: str,
    master: str | None,
    storage: list[str] | None,
    *,
    short_lived: bool = False,
    progress: bool = True,
) -> Job:
    with announced(f"loading {file}") if progress else contextlib.nullcontext(lambda text: None) as say:
        from spark_ext.script import check_file, load_function, make_job
        from spark_ext.spark.backend.kinds import backend_of
        from spark_ext.spark.session.sessions import session

        check_file(file)
        stores = session_storage(storage)
        say("starting Spark")
        # Before the file is loaded: a user function whose type is given as text needs a session, as in a notebook.
        with interrupts_as_before():
            spark = session(file.stem, master=master, short_lived=short_lived, **stores)
        backend_of(spark).diagnosis(spark).silence()
        say(f"building the job of {file}")
        return make_job(load_function(file, function, spark=spark), spark, f"{file}: {function}")


def _rows(state: str, storage: list[str] | None, row_type: type[Row], columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """A table's rows, each once: a writer that was killed while writing may have left one twice."""
    from spark_ext.views.recorded import rows_of
    from spark_ext.views.status import open_ledger

    rows = rows_of(open_ledger(state, storage_options(storage)), row_type, *columns)
    return list({tuple(row.values()): row for row in rows}.values())


if __name__ == "__main__":
    main()
