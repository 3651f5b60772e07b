"""What all commands share: exit codes, common options and how they print."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from spark_ext.errors import SparkExtError
from spark_ext.storage import StoreOptions
from spark_ext.views.terminal import Terminal

FAILED: Final = 1  # the job has failed
REFUSED: Final = 2  # nothing was started or accepted
STOPPED: Final = 3  # the job was stopped before its end
REJECTED: Final = 4  # a control event was accepted, and then rejected
NOT_DONE: Final = 5  # a control event was accepted, and has failed
EXPIRED: Final = 6  # a control event was accepted, and expired before it was obeyed
TIMED_OUT: Final = 7  # a control event was accepted, and has no final status yet
UNREACHABLE: Final = 8  # ledger, server or another thing needed; the same command may succeed later
RUNNING: Final = 9  # another run of the job is under way; nothing was started
State = Annotated[str, typer.Argument(metavar="STATE", help="The job's state directory: a path or URI.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="KEY=VALUE", help="An object store option, in delta-rs's names."),
]


SessionStorage = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="s3|KEY=VALUE",
        help="s3: add Hadoop's file system for S3. KEY=VALUE: an object store option, in delta-rs's names.",
    ),
]


def session_storage(given: list[str] | None) -> dict[str, Any]:
    """The arguments of `session` for what a command line says about stores."""
    options = pairs([one for one in given or () if one != "s3"], "s3 or KEY=VALUE", "--storage")
    return {"storage": "s3" if "s3" in (given or ()) else None, "storage_options": options or None}


def storage_options(storage: list[str] | None) -> dict[str, str]:
    """The object-store options of a command line, which this process has from now on."""
    options = StoreOptions.of(pairs(storage, "KEY=VALUE", "--storage"), "option --storage", kept="nothing was changed")
    options.enter(os.environ)
    return dict(options.values)


def print_text(text: str, *, error: bool = False) -> None:
    """Print text as it is, on standard output or standard error."""
    Terminal(stderr=error).print(text, soft_wrap=True)


def print_error(problem: SparkExtError) -> None:
    """Print an error's message on standard error."""
    print_text(str(problem), error=True)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print JSON on standard output; times as ISO 8601."""
    typer.echo(json.dumps(value, indent=indent, default=datetime.isoformat))


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """Print rows as a table or as JSON."""
    if as_json:
        print_json(rows)
        return
    from spark_ext.views.terminal import show_rows

    show_rows(rows, columns, Terminal())


def pairs(given: Sequence[str] | None, form: str, option: str) -> dict[str, str]:
    """Options of the form KEY=VALUE."""
    found = [item.partition("=") for item in given or ()]
    for name, separator, _ in found:
        if not separator:
            raise typer.BadParameter(f"'{name}' is not {form}", param_hint=option)
    return {name: value for name, _, value in found}
