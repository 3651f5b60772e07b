"""The kinds of control events: their targets, values and commands. Pure.

A *standing* event stays in force until another event replaces it; it is part of the configuration of each epoch. Other
events are carried out once, and not again after a crash or a restore. The commands of `spark-ext control`, the API's
description, `kinds` and a table in docs/cli.md are generated from these definitions.

A plugin adds kinds with `register`, or with entry points of the group `spark_ext.control_kinds` that name a `Kind`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from pydantic import BaseModel, ValidationError

from spark_ext.model import control_values as values
from spark_ext.model.control import MAX_VALUE_BYTES, Scope, Target
from spark_ext.model.offsets import Json

GROUP = "spark_ext.control_kinds"  # the group of entry points with which a plugin adds kinds


class Where(str, Enum):
    """Where an event is carried out."""

    EPOCH = "epoch"  # the source's planner writes it into the offset: in force for all rows of an epoch
    DRIVER = "driver"  # in the job's coordinator
    BOTH = "both"

    __str__ = str.__str__


@dataclass(frozen=True)
class Command:
    """A command of `spark-ext control` that sends a kind."""

    name: str
    arguments: tuple[str, ...] = ()  # by position, optional ones in brackets; `target` is the event's target
    options: Mapping[str, str] = field(default_factory=dict)  # options by the member that they set
    fixed: Mapping[str, Json] = field(default_factory=dict)  # members that the command sets itself
    about: str = ""  # help text, if not that of the kind


@dataclass(frozen=True)
class Kind:
    """A kind of control event."""

    name: str
    about: str  # what it does, in the imperative, for help texts and the API's description
    scopes: frozenset[Scope]
    where: Where
    value_type: type[BaseModel] | None = None  # the model of its value; None means no value
    standing: bool = False  # whether it stays in force until another event replaces it
    slot: str = ""  # standing kind: the member, such as the key, by which a later event replaces an earlier one
    lifts: bool = False  # for a standing kind: whether the value None ends what is in force
    ends: str = ""  # the standing kind that this one ends, such as `pause` for `resume`
    becomes: str = ""  # the standing kind of the event that the driver makes from it, with the same delivery
    confirmed: bool = False  # whether the value must contain `"yes": true`, because rows are skipped or repeated
    while_running: bool = False  # whether it is refused when the job is known not to run: no later start carries it out
    public: bool = True  # whether clients may request it; the job itself writes the others
    example: Json = None
    commands: tuple[Command, ...] = ()  # default: the kind's name, with target and JSON value as arguments
    handle: Callable[[Json], Json] | None = None
    """For a plugin's kind that the driver carries out: called with the value, on a thread of its own. Its return value
    is the event's result; an exception is the reason of its failure."""

    @property
    def own_commands(self) -> tuple[Command, ...]:
        """The commands that take no JSON for the whole value."""
        if self.commands or self.value_type is not None or not self.public:
            return self.commands
        return (Command(self.name, () if self.scopes == _JOB else ("[target]",)),)

    @property
    def aligned(self) -> bool:
        """Whether it can take effect at one cut of all queries."""
        return bool(self.becomes) or (self.standing and self.where is Where.EPOCH)

    def described(self) -> dict[str, Json]:
        """The kind as plain values, for clients."""
        return {
            "name": self.name,
            "about": self.about,
            "targets": sorted(str(scope) for scope in self.scopes),
            "where": str(self.where),
            "standing": self.standing,
            "confirmed": self.confirmed,
            "while_running": self.while_running,
            "aligned": self.aligned,
            "example": self.example,
            "value_schema": None if self.value_type is None else self.value_type.model_json_schema(),
        }


class BadValue(ValueError):
    """The value or target of an event does not fit its kind."""


_EVERYWHERE = frozenset({Scope.JOB, Scope.QUERY})
_INPUT = frozenset({Scope.SOURCE, Scope.CHANNEL})
_JOB = frozenset({Scope.JOB})

BUILT_IN: tuple[Kind, ...] = (
    Kind(
        "rate_limit",
        "Limit how fast a source or a channel is read.",
        _INPUT,
        Where.EPOCH,
        values.RateLimit,
        standing=True,
        lifts=True,
        example={"rows_per_second": 5000},
        commands=(
            Command(
                "rate-limit",
                ("target", "[rows_per_second]"),
                {"bytes_per_second": "--bytes", "rows_per_epoch": "--per-epoch", "older_than": "--older-than"},
            ),
        ),
    ),
    Kind("pause", "Stop reading; queries keep running.", _EVERYWHERE | _INPUT, Where.EPOCH, standing=True),
    Kind(
        "resume",
        "End the pause of the same target; limits stay in force.",
        _EVERYWHERE | _INPUT,
        Where.EPOCH,
        standing=True,
        ends="pause",
    ),
    Kind(
        "sample",
        "Read a share of the rows, chosen by a hash of channel and position.",
        _INPUT,
        Where.EPOCH,
        values.Sample,
        standing=True,
        lifts=True,
        example={"fraction": 0.1},
        commands=(Command("sample", ("target", "fraction")),),
    ),
    Kind(
        "trigger_interval",
        "Set the minimum time between the starts of two data epochs.",
        _EVERYWHERE,
        Where.EPOCH,
        values.TriggerInterval,
        standing=True,
        lifts=True,
        example={"interval": "10 s"},
        commands=(Command("interval", ("interval", "[target]")),),
    ),
    Kind(
        "checkpoint_config",
        "Set how often checkpoints are taken, how long one may take, and how many are retained.",
        _JOB,
        Where.DRIVER,
        values.CheckpointConfig,
        standing=True,
        lifts=True,
        example={"checkpoint_interval": "30 s"},
    ),
    Kind(
        "log_level",
        "Set a log level in the driver, the executors and Python workers.",
        _JOB,
        Where.BOTH,
        values.LogLevel,
        standing=True,
        slot="logger",
        example={"level": "DEBUG", "logger": "my.module"},
        commands=(Command("log-level", ("level",), {"logger": "--logger"}),),
    ),
    Kind(
        "set_config",
        "Set a key of your own configuration, which functions read with sx.control.config().",
        _EVERYWHERE,
        Where.EPOCH,
        values.SetConfig,
        standing=True,
        slot="key",
        example={"key": "threshold", "value": 0.8},
        commands=(
            Command("set", ("key", "value"), {"target": "--target"}),
            Command(
                "unset", ("key",), {"target": "--target"}, {"unset": True}, "Remove a key of your own configuration."
            ),
        ),
    ),
    Kind(
        "config_schema",
        "Declare the JSON Schema of a key: values that do not conform are refused from then on.",
        _JOB,
        Where.EPOCH,
        values.ConfigSchema,
        standing=True,
        slot="key",
        example={"key": "threshold", "schema": {"type": "number"}},
        commands=(Command("schema", ("key", "schema")),),
    ),
    Kind(
        "reload",
        "Use another version of a lookup's table: the newest, or the one given.",
        _JOB,
        Where.DRIVER,
        values.Reload,
        becomes="lookup_version",
        example={"lookup": "carriers"},
        commands=(Command("reload", ("lookup", "[version]")),),
    ),
    Kind("checkpoint", "Take an aligned checkpoint of the job.", _JOB, Where.DRIVER, while_running=True),
    Kind(
        "savepoint",
        "Take a savepoint of the running job.",
        _JOB,
        Where.DRIVER,
        values.Savepoint,
        while_running=True,
        example={"path": "/backups/before-upgrade"},
        commands=(Command("savepoint", ("path",), {"aligned": "--aligned"}),),
    ),
    Kind(
        "drain",
        "End the job in order: sources stop, windows are emitted, the job finishes. This cannot be undone.",
        _JOB,
        Where.BOTH,
    ),
    Kind("stop", "Stop the job where it is; the next start continues there.", _JOB, Where.DRIVER, while_running=True),
    Kind(
        "restart",
        "Stop queries at an epoch boundary, and start them again.",
        _EVERYWHERE,
        Where.DRIVER,
        while_running=True,
    ),
    Kind(
        "seek",
        "Continue a channel at another position: the rows between are skipped, or read again.",
        frozenset({Scope.CHANNEL}),
        Where.EPOCH,
        values.Seek,
        confirmed=True,
        example={"position": 120000, "yes": True},
        commands=(Command("seek", ("target", "position")),),
    ),
    Kind(
        "dump",
        "Write stacks of the job's processes, and on request the driver's heap, into the state directory.",
        _JOB,
        Where.DRIVER,
        values.Dump,
        while_running=True,
        example={"scope": "all", "heap": False},
        commands=(Command("dump", (), {"scope": "--scope", "heap": "--heap"}),),
    ),
    Kind(
        "broadcast",
        "Send an event of your own to the functions of queries, which read it with sx.control.events(type).",
        _EVERYWHERE,
        Where.EPOCH,
        values.Broadcast,
        example={"type": "flush-cache", "value": {"region": "eu"}},
        commands=(Command("broadcast", ("type", "[value]"), {"target": "--target"}),),
    ),
    Kind(
        "final_epoch",
        "Add an empty epoch after the end of input.",
        frozenset({Scope.SOURCE}),
        Where.EPOCH,
        values.FinalEpoch,
        public=False,
        example=1,
    ),
    Kind(
        "lookup_version",
        "Fix the version of a lookup's table.",
        _JOB,
        Where.EPOCH,
        values.LookupVersion,
        standing=True,
        slot="lookup",
        public=False,
    ),
    Kind(
        "renamed",
        "Move the standing events of a query to its new uid.",
        _JOB,
        Where.EPOCH,
        values.Renamed,
        public=False,
    ),
    Kind(
        "align",
        "Hold queries that have passed a checkpoint's barrier until the checkpoint is recorded or aborted.",
        _JOB,
        Where.DRIVER,
        values.Align,
        public=False,
    ),
    Kind(
        "release",
        "Put an aligned event into force, once the barrier of its checkpoint has passed all queries.",
        _JOB,
        Where.EPOCH,
        values.Release,
        public=False,
    ),
)

_known: dict[str, Kind] = {}


def register(kind: Kind) -> None:
    """Add a kind, in this process."""
    if kinds().get(kind.name, kind) != kind:
        raise ValueError(f"a control kind named {kind.name!r} exists already")
    _known[kind.name] = kind


def kinds() -> Mapping[str, Kind]:
    """All kinds by name: built in, of plugins, and registered."""
    if not _known:
        from importlib.metadata import entry_points

        found = {kind.name: kind for kind in BUILT_IN}
        for point in entry_points(group=GROUP):
            kind = point.load()
            if isinstance(kind, Kind):
                found.setdefault(kind.name, kind)
        _known.update(found)
    return _known


def checked(kind: Kind, target: Target, value: Json) -> Json:
    """The value of an event in its stored form; raises BadValue."""
    if target.scope not in kind.scopes:
        wanted = ", ".join(sorted(str(scope) for scope in kind.scopes))
        raise BadValue(f"{kind.name} may be addressed to: {wanted}; not to a {target.scope}")
    try:
        size = len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (ValueError, TypeError, RecursionError) as problem:
        raise BadValue(f"the value is not JSON: {problem}") from None
    if size > MAX_VALUE_BYTES:
        raise BadValue(f"the value has {size} bytes; the limit is {MAX_VALUE_BYTES}")
    if kind.value_type is None:
        if value is not None:
            raise BadValue(f"{kind.name} takes no value")
        return None
    if value is None and kind.lifts:
        return None
    try:
        found = kind.value_type.model_validate(value)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        member = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
        raise BadValue(f"{member}: {first['msg']}" if member else first["msg"]) from None
    stored = found.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if kind.slot:
        stored.setdefault(kind.slot, "")
    if kind.confirmed and stored.get("yes") is not True:
        raise BadValue('rows are skipped or read again: confirm it with "yes": true')
    return stored
