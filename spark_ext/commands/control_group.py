"""The group `spark-ext control STATE|URL`, and what its commands share: connection, common options, exit codes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from spark_ext.commands import output
from spark_ext.commands.output import Json as AsJson
from spark_ext.commands.output import Storage, storage_options
from spark_ext.errors import TransientError
from spark_ext.model.control_kinds import kinds
from spark_ext.steering.tables import short

if TYPE_CHECKING:
    from spark_ext.steering.control import Control
    from spark_ext.steering.sent import SentEvent


class KindGroup(TyperGroup):
    """Accepts the name of any kind as a command: `control STATE KIND [TARGET] [JSON]`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command; for a kind without one of its own, the command `send` for that kind."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
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
    help="Change a running job, and follow its control events.",
    cls=KindGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

HYPHENS: Final = {"ignore_unknown_options": True}  # a value may begin with a hyphen, as a negative number does

TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="For a URL: file that contains the token. Default: the environment variable SPARK_EXT_TOKEN.",
    ),
]
Trusted = Annotated[str | None, typer.Option("--ca", metavar="FILE", help="For a URL: file with trusted certificates.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the final status of the event.")]
Timeout = Annotated[
    float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Maximum time to wait; implies --wait.")
]


@app.callback()
def _job(
    ctx: typer.Context,
    where: Annotated[
        str,
        typer.Argument(
            metavar="STATE|URL",
            help="The job's state directory, a path or URI; or the URL of a server, with /v1/jobs/NAME if it serves "
            "several jobs.",
            show_default=False,
        ),
    ],
) -> None:
    ctx.obj = where


def shows(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command out of a function that takes a `Control`, `as_json`, and its own parameters."""

    def decorate(show: Callable[..., None]) -> Callable[..., None]:
        given = list(inspect.signature(show).parameters.values())[2:]
        # Annotations are text, and those of the first two name types that are imported for type checks only.
        known = {**vars(sys.modules[show.__module__])}
        own = [one.replace(annotation=eval(one.annotation, known), kind=KEYWORD) for one in given]
        add_command(name, show.__doc__ or "", own, show)
        return show

    return decorate


KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY

_REACHES: Final[dict[str, tuple[Any, Any]]] = {
    "token_file": (TokenFile, None),
    "ca": (Trusted, None),
    "storage": (Storage, None),
    "as_json": (AsJson, False),
}


def parameters(of: Mapping[str, tuple[Any, Any]]) -> list[inspect.Parameter]:
    """Parameters of a command, from their types and defaults."""
    return [inspect.Parameter(name, KEYWORD, default=default, annotation=hint) for name, (hint, default) in of.items()]


def add_command(name: str, about: str, own: Sequence[inspect.Parameter], act: Callable[..., None]) -> None:
    """Add a command: it connects to the job, and calls `act` with a `Control`, `as_json` and its own parameters."""

    def command(
        ctx: typer.Context,
        *,
        token_file: Path | None,
        ca: str | None,
        storage: list[str] | None,
        as_json: bool,
        **given: Any,
    ) -> None:
        with connected(str(ctx.obj), token_file, ca, storage) as control:
            act(control, as_json, **given)

    context = inspect.Parameter("ctx", KEYWORD, annotation=typer.Context)
    command.__annotations__ = {}
    signature = inspect.Signature([context, *own, *parameters(_REACHES)])
    setattr(command, "__signature__", signature)  # noqa: B010 - a function has no such member
    app.command(name, help=about, context_settings=HYPHENS)(command)


@contextmanager
def connected(where: str, token_file: Path | None, ca: str | None, storage: list[str] | None) -> Iterator[Control]:
    """The job for a command; ends the command with UNREACHABLE if a server or the ledger cannot be reached."""
    from spark_ext.steering.control import Control
    from spark_ext.steering.reach import connect, is_url

    token = None if token_file is None else read_token(token_file)
    options = storage_options(storage)
    if is_url(where) and options:
        raise typer.BadParameter("not allowed with the URL of a server", param_hint="--storage")
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
        raise typer.BadParameter(f"could not read '{file}': {problem}", param_hint="--token-file") from None
    if mode & 0o077:
        raise typer.BadParameter(f"other users can read '{file}'; run chmod 600 {file}", param_hint="--token-file")
    if not text or not text.isascii() or len(text.split()) != 1:
        raise typer.BadParameter(f"'{file}' must contain a single token", param_hint="--token-file")
    return text


def report(sent: SentEvent, control: Control, *, as_json: bool) -> None:
    """Print an event with its current status, and whether there is a driver to obey it."""
    _say_if_none_obeys(sent, control)
    show(sent, as_json=as_json)


def _say_if_none_obeys(sent: SentEvent, control: Control) -> None:
    if not sent.state.final and control.runs() is False:
        output.print_text("the job does not run: its next start obeys this event", error=True)


def show(sent: SentEvent, *, as_json: bool) -> None:
    """Print an event."""
    if sent.note:
        output.print_text(f"note: {sent.note}", error=True)
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
        output.print_text(f"  id: {sent.id}")


def finish(sent: SentEvent, control: Control, timeout: float | None, *, as_json: bool) -> None:
    """Wait for the final status, print it, and end with its exit code."""
    _say_if_none_obeys(sent, control)
    try:
        sent.wait(timeout, check=False)
    except TimeoutError as late:
        show(sent, as_json=as_json)
        output.print_text(f"{late}; to keep waiting, run `spark-ext control ... event {sent.id} --wait`", error=True)
        raise typer.Exit(output.TIMED_OUT) from None
    except KeyboardInterrupt:
        output.print_text(f"stopped waiting; event {sent.sequence}, {sent.id}, remains accepted", error=True)
        raise typer.Exit(output.TIMED_OUT) from None
    show(sent, as_json=as_json)
    if sent.status != "acknowledged":
        from spark_ext.steering.sent import ControlNotDone

        output.print_error(ControlNotDone.of(sent.state))
        raise typer.Exit(CODES[sent.status])


CODES: Final = {"rejected": output.REJECTED, "failed": output.NOT_DONE, "expired": output.EXPIRED}
