"""The commands of `spark-ext control` that send an event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_ext.commands import output
from spark_ext.commands.control_group import Ask, sends
from spark_ext.model.control import Scope, Target
from spark_ext.model.offsets import Json
from spark_ext.steering.tables import short

if TYPE_CHECKING:
    from spark_ext.steering.control import Control

Where = Annotated[str, typer.Argument(metavar="TARGET", help="job, query:UID, source:UID or source:UID/CHANNEL.")]
Input = Annotated[str, typer.Argument(metavar="TARGET", help="source:UID or source:UID/CHANNEL.")]
Queries = Annotated[str, typer.Argument(metavar="TARGET", help="job, or query:UID.")]
ToQueries = Annotated[str, typer.Option("--target", help="job, or query:UID.")]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm that rows are skipped, or read again.")]


@sends("rate-limit")
def rate_limit(
    target: Input,
    rate: Annotated[
        str | None, typer.Argument(metavar="ROWS_PER_SECOND", help="A number; 'none' lifts all limits.")
    ] = None,
    bytes_: Annotated[float | None, typer.Option("--bytes", metavar="N", help="Bytes per second.")] = None,
    per_epoch: Annotated[int | None, typer.Option("--per-epoch", metavar="N", help="Rows of one epoch.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DURATION", help="Only for channels whose next rows are older."),
    ] = None,
) -> Ask:
    """Limit how fast a source or a channel is read."""
    limits = {"bytes_per_second": bytes_, "rows_per_epoch": per_epoch, "older_than": older_than}
    value: dict[str, Json] = {name: one for name, one in limits.items() if one is not None}
    if rate == "none":
        if value:
            raise typer.BadParameter("'none' lifts all limits: give no others with it", param_hint="ROWS_PER_SECOND")
        return Ask("rate_limit", target)
    if rate is not None:
        value["rows_per_second"] = _number(rate, "ROWS_PER_SECOND")
    if not value:
        raise typer.BadParameter("give rows per second, --bytes, --per-epoch, or 'none'", param_hint="ROWS_PER_SECOND")
    return Ask("rate_limit", target, value)


@sends("pause")
def pause(target: Where = "job") -> Ask:
    """Read nothing; queries keep running."""
    return Ask("pause", target)


@sends("resume")
def resume(target: Where = "job") -> Ask:
    """End the pause of the same target; limits stay in force."""
    return Ask("resume", target)


@sends("sample")
def sample(
    target: Input,
    fraction: Annotated[str, typer.Argument(metavar="FRACTION", help="Greater than 0; 1 or 'none' reads all.")],
) -> Ask:
    """Read a share of the rows, chosen by channel and position."""
    value = None if fraction == "none" else {"fraction": _number(fraction, "FRACTION")}
    return Ask("sample", target, value)


@sends("interval")
def interval(
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="Such as 10s; 'none' lifts it.")],
    target: Queries = "job",
) -> Ask:
    """Set the minimum time between the starts of two data epochs."""
    return Ask("trigger_interval", target, None if duration == "none" else {"interval": duration})


@sends("set")
def set_key(
    name: Annotated[str, typer.Argument(metavar="KEY")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Any JSON.")],
    text: Annotated[bool, typer.Option("--text", help="Take the value as text, not as JSON.")] = False,
    target: ToQueries = "job",
) -> Ask:
    """Set a key of your own configuration."""
    return Ask("set_config", target, {"key": name, "value": value if text else parsed(value, "JSON")})


@sends("unset")
def unset_key(name: Annotated[str, typer.Argument(metavar="KEY")], target: ToQueries = "job") -> Ask:
    """Remove a key of your own configuration."""
    return Ask("set_config", target, {"key": name, "unset": True})


@sends("schema")
def schema(
    name: Annotated[str, typer.Argument(metavar="KEY")],
    given: Annotated[str, typer.Argument(metavar="FILE_OR_JSON", help="A JSON Schema, or a file with one.")],
) -> Ask:
    """Declare the JSON Schema of a key: values that do not conform are refused from then on."""
    text = given
    if not given.lstrip().startswith("{") and given not in ("true", "false"):
        try:
            text = Path(given).read_text()
        except (OSError, UnicodeDecodeError) as problem:
            raise typer.BadParameter(f"'{given}' cannot be read: {problem}", param_hint="FILE_OR_JSON") from None
    return Ask("config_schema", "job", {"key": name, "schema": parsed(text, "FILE_OR_JSON")})


@sends("log-level")
def log_level(
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="TRACE, DEBUG, INFO, WARN, ERROR or OFF.")],
    logger: Annotated[str, typer.Option("--logger", metavar="NAME", help="One logger; default: the root.")] = "",
) -> Ask:
    """Set a log level in the driver, the executors and Python workers."""
    return Ask("log_level", "job", {"level": level, "logger": logger})


@sends("checkpoint")
def checkpoint() -> Ask:
    """Take an aligned checkpoint."""
    return Ask("checkpoint")


@sends("savepoint")
def savepoint(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A folder, empty or missing, as the driver sees it.")],
    aligned: Annotated[bool, typer.Option("--aligned", help="With nothing in flight.")] = False,
) -> Ask:
    """Take a savepoint of the running job."""
    return Ask("savepoint", "job", {"path": path, "aligned": True} if aligned else {"path": path})


@sends("drain")
def drain() -> Ask:
    """End the job in order: sources stop, windows are emitted, the job finishes. It cannot be taken back."""
    return Ask("drain")


@sends("stop")
def stop() -> Ask:
    """Stop the job where it is; a further start continues there."""
    return Ask("stop")


@sends("restart")
def restart(target: Queries = "job") -> Ask:
    """Stop queries at an epoch boundary, and start them."""
    return Ask("restart", target)


@sends("seek")
def seek(
    target: Annotated[str, typer.Argument(metavar="source:UID/CHANNEL")],
    position: Annotated[str, typer.Argument(metavar="POSITION", help="JSON, in the form of the source's positions.")],
    yes: Yes = False,
) -> Ask:
    """Continue a channel at another position: the rows between are skipped, or read again."""
    to = parsed(position, "POSITION")

    def notice(control: Control) -> None:
        if not yes:
            output.print_text(
                f"{consequence(control, target, to)}; nothing was sent: confirm it with --yes", error=True
            )
            raise typer.Exit(output.REFUSED)

    return Ask("seek", target, {"position": to, "yes": yes}, notice)


@sends("stack-dump")
def stack_dump() -> Ask:
    """Write the stacks of the driver's threads into the state directory."""
    return Ask("stack_dump")


@sends("dump")
def dump(
    heap: Annotated[bool, typer.Option("--heap", help="The heap of the driver's JVM too, which stands still.")] = False,
) -> Ask:
    """Write the stacks of all processes of the job into the state directory."""
    return Ask("dump", "job", {"heap": heap})


@sends("broadcast")
def broadcast(
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="Functions read events by their type.")],
    value: Annotated[str, typer.Argument(metavar="JSON", help="Any JSON.")] = "null",
    target: ToQueries = "job",
) -> Ask:
    """Send an event of your own to the functions of queries."""
    return Ask("broadcast", target, {"type": type_, "value": parsed(value, "JSON")})


@sends("send")
def send(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="See the command kinds.")],
    target: Where = "job",
    value: Annotated[str | None, typer.Argument(metavar="JSON", help="As the kind takes it.")] = None,
    yes: Yes = False,
) -> Ask:
    """Send an event of any kind, those of plugins included."""
    found = None if value is None else parsed(value, "JSON")
    if yes and isinstance(found, dict):
        found = {**found, "yes": True}
    return Ask(kind, target, found)


def consequence(control: Control, target: str, to: Json) -> str:
    """What a seek does, as far as it is known from here."""
    try:
        parsed_target = Target.parse(target)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="TARGET") from None
    if parsed_target.scope is not Scope.CHANNEL:
        raise typer.BadParameter("a seek is for one channel: source:UID/CHANNEL", param_hint="TARGET")
    place = control.place(parsed_target.uid, parsed_target.channel)
    who = f"channel '{parsed_target.channel}' of source '{parsed_target.uid}'"
    if place is None:
        return f"{who} would continue at {short(to)}: the rows between are skipped, or read again"
    begin = f"{who} has been planned up to {short(place.position)}, by epoch {place.epoch} of query '{place.query}'"
    if not _is_number(to) or not _is_number(place.position):
        return f"{begin}; it would continue at {short(to)}: the rows between are skipped, or read again"
    if to > place.position:
        return f"{begin}; positions {short(place.position)} to {short(to)} would be skipped"
    return f"{begin}; positions {short(to)} to {short(place.position)} would be read again, and written again"


def parsed(text: str, name: str) -> Any:
    """JSON."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        raise typer.BadParameter(
            f"{text[:100]!r} is not JSON: {problem}; text is written '\"in quotes\"'", param_hint=name
        ) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _number(text: str, name: str) -> int | float:
    found = parsed(text, name)
    if not _is_number(found):
        raise typer.BadParameter(f"{text!r} is not a number", param_hint=name)
    number: int | float = found
    return number


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
