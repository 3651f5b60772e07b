"""The commands of `spark-ext control` that send an event, one for each `Command` of a kind, and `send` for any kind."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_ext.commands import output
from spark_ext.commands.control_group import Timeout, Wait, add_command, finish, parameters, report
from spark_ext.model.control import Scope, Target
from spark_ext.model.control_kinds import BUILT_IN, Command, Kind
from spark_ext.model.offsets import Json
from spark_ext.steering.tables import short

if TYPE_CHECKING:
    from spark_ext.steering.control import Control

SENDS: Final = parameters(
    {
        "wait": (Wait, False),
        "timeout": (Timeout, None),
        "delivery": (
            Annotated[
                str, typer.Option("--delivery", help="'immediate', or 'aligned': in all queries at one cut of the job.")
            ],
            "immediate",
        ),
        "key": (
            Annotated[
                str | None,
                typer.Option(
                    "--key",
                    metavar="IDEMPOTENCY",
                    help="Idempotency key: repeating a request with the same key has no further effect.",
                ),
            ],
            None,
        ),
        "expires": (
            Annotated[
                str | None,
                typer.Option("--expires", metavar="DURATION", help="Discard the event after this time, such as 10m."),
            ],
            None,
        ),
    }
)

FORMS: Final = {
    Scope.JOB: "job",
    Scope.QUERY: "query:UID",
    Scope.SOURCE: "source:UID",
    Scope.CHANNEL: "source:UID/CHANNEL",
    Scope.SINK: "sink:UID",
}
"""How targets are written."""

NONE: Final = "none"  # the argument that lifts what is in force
YES: Final = Annotated[bool, typer.Option("--yes", help="Confirm that rows are skipped, or read again.")]


def form(schema: dict[str, Any]) -> str:
    """How a member is written: its metavar on the command line; "" for a flag."""
    if "enum" in schema:
        return "|".join(schema["enum"])
    types = _types(schema) - {"null"}
    if types == {None}:
        return "JSON"
    if "object" in types:
        return "FILE_OR_JSON"
    if types == {"integer", "string"}:
        return "DURATION"
    if types <= {"integer", "number"}:
        return "NUMBER"
    return "" if types == {"boolean"} else "TEXT"


def _types(schema: dict[str, Any]) -> set[str | None]:
    parts = schema.get("anyOf", ())
    return {one for part in parts for one in _types(part)} if parts else {schema.get("type")}


class Sender:
    """A command that sends a kind: its parameters, and what it does."""

    def __init__(self, kind: Kind, command: Command) -> None:
        self.kind, self.command = kind, command
        self._members: dict[str, Any] = (
            {} if kind.value_type is None else kind.value_type.model_json_schema()["properties"]
        )
        self._forms = {member: form(schema) for member, schema in self._members.items()}
        self._positional = [one for argument in command.arguments if (one := argument.strip("[]")) != "target"]

    @property
    def about(self) -> str:
        """Help text."""
        return self.command.about or self.kind.about

    @property
    def usage(self) -> str:
        """The command with its arguments, as the documentation shows it."""
        words = [f"[{self._shown(one)}]" if one.startswith("[") else self._shown(one) for one in self.command.arguments]
        return " ".join([self.command.name, *words])

    def options(self) -> dict[str, str]:
        """Help texts of its own options."""
        found = {flag: self._about(member) for member, flag in self.command.options.items()}
        if any(self._forms[member] == "JSON" for member in self._positional):
            found["--text"] = "Take the value as text, not as JSON."
        return found

    def parameters(self) -> list[inspect.Parameter]:
        """All but those that connect to the job."""
        own: dict[str, tuple[Any, Any]] = {}
        for one in self.command.arguments:
            member, needed = one.strip("[]"), not one.startswith("[")
            argument = typer.Argument(metavar=self._shown(one), help=self._about(member), show_default=False)
            default = inspect.Parameter.empty if needed else None
            own[f"given_{member}"] = (Annotated[str if needed else str | None, argument], default)
        for member, flag in self.command.options.items():
            if self._forms.get(member) == "":
                own[f"given_{member}"] = (Annotated[bool, typer.Option(flag, help=self._about(member))], False)
            else:
                option = typer.Option(flag, metavar=self._forms.get(member, "TARGET"), help=self._about(member))
                own[f"given_{member}"] = (Annotated[str | None, option], None)
        if "--text" in (options := self.options()):
            own["text"] = (Annotated[bool, typer.Option("--text", help=options["--text"])], False)
        if self.kind.confirmed:
            own["yes"] = (YES, False)
        return parameters(own) + SENDS

    def __call__(self, control: Control, as_json: bool, text: bool = False, yes: bool = False, **given: Any) -> None:
        """Send the event."""
        members = {name.removeprefix("given_"): given.pop(name) for name in list(given) if name.startswith("given_")}
        target = members.pop("target", None) or "job"
        value = self._value(members, text)
        if self.kind.confirmed:
            if not yes:
                said = consequence(control, target, value["position"])
                output.print_text(f"{said}; nothing was sent: confirm it with --yes", error=True)
                raise typer.Exit(output.REFUSED)
            value["yes"] = True
        send(control, as_json, self.kind.name, target, value, **given)

    def _value(self, members: dict[str, Any], text: bool) -> Any:
        if self.kind.value_type is None:
            return None
        given = {member: one for member, one in members.items() if one is not None and one is not False}
        if self.kind.lifts and self._positional and given.get(self._positional[0]) == NONE:
            if len(given) > 1:
                raise typer.BadParameter(
                    f"'{NONE}' lifts all limits; do not combine it with others", param_hint=self._positional[0].upper()
                )
            return None
        return {**{member: self._read(member, one, text) for member, one in given.items()}, **self.command.fixed}

    def _read(self, member: str, given: Any, text: bool) -> Any:
        name = self.command.options.get(member, self._shown(member))
        match self._forms[member]:
            case "JSON" if not text:
                return parsed(given, name)
            case "NUMBER":
                return _number(given, name)
            case "FILE_OR_JSON":
                return parsed(_content(given, name), name)
        return given

    def _shown(self, argument: str) -> str:
        member = argument.strip("[]")
        own = self._forms.get(member, "")
        return own if own in ("FILE_OR_JSON", "DURATION") or (own, member) == ("JSON", "value") else member.upper()

    def _about(self, member: str) -> str:
        if member == "target":
            forms = ", ".join(FORMS[scope] for scope in Scope if scope in self.kind.scopes)
            return f"{forms}. Default: job." if Scope.JOB in self.kind.scopes else f"{forms}."
        lifts = f" '{NONE}' lifts it." if self.kind.lifts and member == self._positional[0] else ""
        return f"{self._members[member]['description']}{lifts}"


def send(
    control: Control,
    as_json: bool,
    kind: str,
    target: str = "job",
    value: Json = None,
    *,
    delivery: str,
    key: str | None,
    expires: str | None,
    wait: bool,
    timeout: float | None,
) -> None:
    """Send an event, and print what is known of it."""
    sent = control.send(kind, target, value, delivery=delivery, idempotency_key=key, expires=expires)
    if wait or timeout is not None:
        finish(sent, control, timeout, as_json=as_json)
    else:
        report(sent, control, as_json=as_json)


def _send_any(
    control: Control, as_json: bool, kind: str, target: str, value: str | None, yes: bool, **how: Any
) -> None:
    found = None if value is None else parsed(value, "JSON")
    if yes and isinstance(found, dict):
        found = {**found, "yes": True}
    send(control, as_json, kind, target, found, **how)


SENDERS: Final = tuple(Sender(kind, command) for kind in BUILT_IN for command in kind.own_commands)

for _sender in SENDERS:
    add_command(_sender.command.name, _sender.about, _sender.parameters(), _sender)

_ANY: Final[dict[str, tuple[Any, Any]]] = {
    "kind": (Annotated[str, typer.Argument(metavar="KIND", help="See the command kinds.")], inspect.Parameter.empty),
    "target": (Annotated[str, typer.Argument(metavar="TARGET", help=f"{', '.join(FORMS.values())}.")], "job"),
    "value": (Annotated[str | None, typer.Argument(metavar="JSON", help="The value, in the form of the kind.")], None),
    "yes": (YES, False),
}
add_command("send", "Send an event of any kind, including those of plugins.", parameters(_ANY) + SENDS, _send_any)


def consequence(control: Control, target: str, to: Json) -> str:
    """What a seek would do."""
    try:
        parsed_target = Target.parse(target)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="TARGET") from None
    if parsed_target.scope is not Scope.CHANNEL:
        raise typer.BadParameter("a seek needs a channel: source:UID/CHANNEL", param_hint="TARGET")
    place = control.place(parsed_target.uid, parsed_target.channel)
    channel = f"channel '{parsed_target.channel}' of source '{parsed_target.uid}'"
    if place is None:
        return f"{channel} would continue at {short(to)}: the rows between are skipped, or read again"
    begin = f"{channel} has been planned up to {short(place.position)}, by epoch {place.epoch} of query '{place.query}'"
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
            f"{text[:100]!r} is not JSON: {problem}; write text as '\"in quotes\"'", param_hint=name
        ) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _content(given: str, name: str) -> str:
    """The JSON itself, or that of a file."""
    if given.lstrip().startswith("{") or given in ("true", "false"):
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise typer.BadParameter(f"could not read '{given}': {problem}", param_hint=name) from None


def _number(text: str, name: str) -> int | float:
    found = parsed(text, name)
    if not _is_number(found):
        raise typer.BadParameter(f"{text!r} is not a number", param_hint=name)
    number: int | float = found
    return number


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
