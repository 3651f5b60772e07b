"""The group `spark-ext control STATE|URL`: what its commands have in common.

A command is a function with its own parameters only; `sends` and `looks` add the others, connect to the job, and turn
what comes of it into an exit code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from spark_ext.commands import output
from spark_ext.commands.output import Json as AsJson
from spark_ext.commands.output import Storage, storage_options
from spark_ext.errors import TransientError
from spark_ext.model.offsets import Json
from spark_ext.steering.tables import short

if TYPE_CHECKING:
    from spark_ext.steering.control import Control
    from spark_ext.steering.sent import SentEvent

Command = Callable[..., Any]


class KindGroup(TyperGroup):
    """Takes the name of any kind as a command: `control STATE KIND TARGET [VALUE]`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command with a name; for a kind without one the command `send` of that kind."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        from spark_ext.model.control_kinds import kinds  # here, as in all of these: the other commands need them not

        kind = kinds().get(cmd_name.replace("-", "_")) or kinds().get(cmd_name)
        if kind is None or not kind.public:
            return None
        generic = super().get_command(ctx, "send")
        assert generic is not None and generic.callback is not None
        return TyperCommand(
            cmd_name,
            callback=partial(generic.callback, kind=kind.name),
            params=[one for one in generic.params if one.name != "kind"],
            help=kind.about,
            context_settings=HYPHENS,
        )


app = typer.Typer(
    help="Change a running job, and see what has become of it.",
    cls=KindGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

HYPHENS: Final = {"ignore_unknown_options": True}
"""So that a value may begin with a hyphen, as a negative number does."""

TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="For a URL: a file with the token. Default: the environment variable SPARK_EXT_TOKEN.",
    ),
]
Trusted = Annotated[str | None, typer.Option("--ca", metavar="FILE", help="For a URL: certificates that are trusted.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the event has its final status.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Longest time to wait; implies --wait.")
]
Delivery = Annotated[
    str, typer.Option("--delivery", help="'immediate', or 'aligned': all queries at one cut of the job.")
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="IDEMPOTENCY", help="Names the request: repeated with it, it is accepted once."),
]
Expires = Annotated[
    str | None, typer.Option("--expires", metavar="DURATION", help="When it is not to be obeyed any more, such as 10m.")
]


@dataclass(frozen=True)
class Ask:
    """What a command sends."""

    kind: str
    target: str = "job"
    value: Json = None
    notice: Callable[[Control], None] | None = None
    """Called before it is sent; may end the command."""


@app.callback()
def _job(
    ctx: typer.Context,
    where: Annotated[
        str,
        typer.Argument(
            metavar="STATE|URL",
            help="The job's state directory, a path or URI; or the URL of a server, with /v1/jobs/NAME if it has "
            "several jobs.",
            show_default=False,
        ),
    ],
) -> None:
    ctx.obj = where


def sends(name: str) -> Callable[[Callable[..., Ask]], Callable[..., Ask]]:
    """Make a command that sends an event out of a function that says which."""

    def decorate(build: Callable[..., Ask]) -> Callable[..., Ask]:
        def command(
            ctx: typer.Context,
            *,
            wait: bool,
            timeout: float | None,
            delivery: str,
            key: str | None,
            expires: str | None,
            token_file: Path | None,
            ca: str | None,
            storage: list[str] | None,
            as_json: bool,
            **own: Any,
        ) -> None:
            ask = build(**own)
            with connected(str(ctx.obj), token_file, ca, storage) as control:
                if ask.notice is not None:
                    ask.notice(control)
                sent = control.send(
                    ask.kind, ask.target, ask.value, delivery=delivery, idempotency_key=key, expires=expires
                )
                if wait or timeout is not None:
                    finish(sent, timeout, as_json=as_json)
                else:
                    report(sent, as_json=as_json)

        _register(name, build, command, {**_SENDS, **_REACHES})
        return build

    return decorate


def looks(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command out of a function that takes a `Control`, `as_json`, and its own parameters."""

    def decorate(show: Callable[..., None]) -> Callable[..., None]:
        def command(
            ctx: typer.Context,
            *,
            token_file: Path | None,
            ca: str | None,
            storage: list[str] | None,
            as_json: bool,
            **own: Any,
        ) -> None:
            with connected(str(ctx.obj), token_file, ca, storage) as control:
                show(control, as_json, **own)

        _register(name, show, command, _REACHES, skip=2)
        return show

    return decorate


_SENDS: Final[dict[str, tuple[Any, Any]]] = {
    "wait": (Wait, False),
    "timeout": (Timeout, None),
    "delivery": (Delivery, "immediate"),
    "key": (Key, None),
    "expires": (Expires, None),
}
_REACHES: Final[dict[str, tuple[Any, Any]]] = {
    "token_file": (TokenFile, None),
    "ca": (Trusted, None),
    "storage": (Storage, None),
    "as_json": (AsJson, False),
}


def _register(name: str, own: Command, command: Command, added: dict[str, tuple[Any, Any]], *, skip: int = 0) -> None:
    """Add a command whose parameters are those of a function, and some more."""
    given = list(inspect.signature(own).parameters.values())[skip:]
    # As text until here, and only those that are needed: the types of the others are not loaded.
    known = {**vars(sys.modules[own.__module__])}
    given = [one.replace(annotation=eval(one.annotation, known)) for one in given]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(one, kind, default=default, annotation=hint) for one, (hint, default) in added.items()]
    context = inspect.Parameter("ctx", kind, annotation=typer.Context)
    parameters = [context, *(one.replace(kind=kind) for one in given), *more]
    command.__doc__ = own.__doc__
    command.__annotations__ = {}
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010 - a function has no such member
    app.command(name, context_settings=HYPHENS)(command)


@contextmanager
def connected(where: str, token_file: Path | None, ca: str | None, storage: list[str] | None) -> Iterator[Control]:
    """The job, until the command has ended; what cannot be reached ends it with a code of its own."""
    from spark_ext.steering.control import Control
    from spark_ext.steering.reach import connect, is_url

    token = None if token_file is None else read_token(token_file)
    options = storage_options(storage)
    if is_url(where) and options:
        raise typer.BadParameter("a server knows its own storage", param_hint="--storage")
    try:
        with Control.over(connect(where, token, storage_options=options or None, origin="cli", verify=ca)) as control:
            yield control
    except TransientError as problem:
        output.print_error(problem)
        raise typer.Exit(output.UNREACHABLE) from None


def read_token(file: Path) -> str:
    """The token in a file."""
    try:
        mode = file.stat().st_mode
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise typer.BadParameter(f"'{file}' cannot be read: {problem}", param_hint="--token-file") from None
    if mode & 0o077:
        raise typer.BadParameter(f"others can read it; chmod 600 {file}", param_hint="--token-file")
    if not text or not text.isascii() or len(text.split()) != 1:
        raise typer.BadParameter(f"'{file}' does not hold a token alone", param_hint="--token-file")
    return text


def report(sent: SentEvent, *, as_json: bool) -> None:
    """Print an event, as far as it is known."""
    if as_json:
        output.print_json(sent.state.to_json())
        return
    value = short(sent.value)
    output.print_text(f"event {sent.sequence} {sent.status}: {sent.kind} {sent.target}{f' ({value})' if value else ''}")
    state = sent.state
    for query, epoch in state.applied.items():
        where = "by the driver" if not query else f"by query '{query}'"
        output.print_text(f"  applied {where}{'' if epoch is None else f' from epoch {epoch} on'}")
    if state.result is not None:
        output.print_text(f"  result: {short(state.result)}")
    if not state.final:
        output.print_text(f"  its id is {sent.id}")


def finish(sent: SentEvent, timeout: float | None, *, as_json: bool) -> None:
    """Wait for the final status, print it, and end with its exit code."""
    try:
        sent.wait(timeout, check=False)
    except TimeoutError as late:
        report(sent, as_json=as_json)
        output.print_text(f"{late}; `spark-ext control ... event {sent.id} --wait` continues to wait", error=True)
        raise typer.Exit(output.TIMED_OUT) from None
    except KeyboardInterrupt:
        output.print_text(f"event {sent.sequence}, {sent.id}, stays accepted", error=True)
        raise typer.Exit(output.TIMED_OUT) from None
    report(sent, as_json=as_json)
    if sent.status != "acknowledged":
        from spark_ext.steering.sent import ControlNotDone

        output.print_error(ControlNotDone.of(sent.state))
        raise typer.Exit(CODES[sent.status])


CODES: Final = {"rejected": output.REJECTED, "failed": output.NOT_DONE, "expired": output.EXPIRED}
"""Exit codes of final statuses."""
