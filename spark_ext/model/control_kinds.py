"""The kinds of control events: what each is addressed to, which values it takes, and how long it is in force.

A *standing* event is in force until another one takes its place; it is part of the configuration of each epoch. An
event that is obeyed *once* is not obeyed again after a crash or a restore. Pure.

A plugin adds kinds by entry points of the group `spark_ext.control_kinds` that name a `Kind` each, or by
`register`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel, ValidationError

from spark_ext.model import control_values as values
from spark_ext.model.control import MAX_VALUE_BYTES, Scope, Target
from spark_ext.model.offsets import Json

GROUP = "spark_ext.control_kinds"
"""The group of entry points by which a plugin adds kinds."""


class Where(str, Enum):
    """Who obeys an event."""

    EPOCH = "epoch"
    """An epoch: the source's planner writes it into the offset, so it is in force for all rows of that epoch."""
    DRIVER = "driver"
    """The job's coordinator."""
    BOTH = "both"

    __str__ = str.__str__


@dataclass(frozen=True)
class Kind:
    """A kind of control event."""

    name: str
    about: str
    """What it does, one sentence, for help texts and the API's description."""
    scopes: frozenset[Scope]
    """What it may be addressed to."""
    where: Where
    value_type: type[BaseModel] | None = None
    """The model of its value; None: it takes none."""
    standing: bool = False
    """Whether it is in force until another one takes its place."""
    slot: str = ""
    """For a standing kind: the member of the value, such as the key, by which a later event replaces an earlier one."""
    lifts: bool = False
    """For a standing kind: whether the value None ends what is in force."""
    ends: str = ""
    """The standing kind that this one puts out of force, such as `pause` for `resume`."""
    confirmed: bool = False
    """Whether the value has to say `"yes": true`, as rows are skipped or repeated."""
    while_running: bool = False
    """Whether it is refused when the job is known not to be running: no later start takes it up."""
    public: bool = True
    """Whether it may be requested; the others are written by the job itself."""
    example: Json = None
    """A value, for help texts."""
    handle: Callable[[Json], Json] | None = None
    """Of a plugin's kind that the driver obeys: called with the value, on a thread of its own; what it returns is the
    event's result, what it raises the reason why it has failed."""


class BadValue(ValueError):
    """The value of an event is not one that its kind takes, or not for this target."""


_EVERYWHERE = frozenset({Scope.JOB, Scope.QUERY})
_INPUT = frozenset({Scope.SOURCE, Scope.CHANNEL})
_JOB = frozenset({Scope.JOB})

BUILT_IN: tuple[Kind, ...] = (
    Kind(
        "rate_limit",
        "Limits how fast a source or a channel is read: rows or bytes per second, or rows per epoch.",
        _INPUT,
        Where.EPOCH,
        values.RateLimit,
        standing=True,
        lifts=True,
        example={"rows_per_second": 5000},
    ),
    Kind("pause", "Reads nothing; the query keeps running.", _EVERYWHERE | _INPUT, Where.EPOCH, standing=True),
    Kind(
        "resume",
        "Ends the pause of the same target. Limits stay in force.",
        _EVERYWHERE | _INPUT,
        Where.EPOCH,
        standing=True,
        ends="pause",
    ),
    Kind(
        "sample",
        "Reads a share of the rows, chosen by a hash of channel and position.",
        _INPUT,
        Where.EPOCH,
        values.Sample,
        standing=True,
        lifts=True,
        example={"fraction": 0.1},
    ),
    Kind(
        "trigger_interval",
        "Sets the minimum time between the starts of two data epochs.",
        _EVERYWHERE,
        Where.EPOCH,
        values.TriggerInterval,
        standing=True,
        lifts=True,
        example={"interval": "10 s"},
    ),
    Kind(
        "checkpoint_config",
        "Sets how often checkpoints are taken, how long one may take, and how many are retained.",
        _JOB,
        Where.DRIVER,
        values.CheckpointConfig,
        standing=True,
        lifts=True,
        example={"checkpoint_interval": "30 s"},
    ),
    Kind(
        "log_level",
        "Sets the level of one logger, or of all, in the driver, the executors and Python workers.",
        _JOB,
        Where.BOTH,
        values.LogLevel,
        standing=True,
        slot="logger",
        example={"level": "DEBUG", "logger": "my.module"},
    ),
    Kind(
        "set_config",
        "Sets a key of your own configuration, which functions read with sx.control.config().",
        _EVERYWHERE,
        Where.EPOCH,
        values.SetConfig,
        standing=True,
        slot="key",
        example={"key": "threshold", "value": 0.8},
    ),
    Kind(
        "config_schema",
        "Declares the JSON Schema of a key: values that do not conform are refused from then on.",
        _JOB,
        Where.EPOCH,
        values.ConfigSchema,
        standing=True,
        slot="key",
        example={"key": "threshold", "schema": {"type": "number"}},
    ),
    Kind("checkpoint", "Takes an aligned checkpoint of the job.", _JOB, Where.DRIVER, while_running=True),
    Kind(
        "savepoint",
        "Takes a savepoint into an empty folder.",
        _JOB,
        Where.DRIVER,
        values.Savepoint,
        while_running=True,
        example={"path": "/backups/before-upgrade"},
    ),
    Kind("drain", "Ends the job in order: sources stop, windows are emitted, the job finishes.", _JOB, Where.BOTH),
    Kind("stop", "Stops the job where it is; a further start continues there.", _JOB, Where.DRIVER, while_running=True),
    Kind(
        "restart", "Stops queries at an epoch boundary and starts them.", _EVERYWHERE, Where.DRIVER, while_running=True
    ),
    Kind(
        "seek",
        "Continues a channel at another position: the rows between are skipped, or read again.",
        frozenset({Scope.CHANNEL}),
        Where.EPOCH,
        values.Seek,
        confirmed=True,
        example={"position": 120000, "yes": True},
    ),
    Kind(
        "stack_dump",
        "Writes the stacks of the driver's threads into the state directory.",
        _JOB,
        Where.DRIVER,
        while_running=True,
    ),
    Kind(
        "dump",
        "Writes the stacks of all processes of the job into the state directory, and on request the driver's heap.",
        _JOB,
        Where.DRIVER,
        values.Dump,
        while_running=True,
        example={"heap": False},
    ),
    Kind(
        "broadcast",
        "Sends an event of your own to the functions of queries, which see it with sx.control.events(type).",
        _EVERYWHERE,
        Where.EPOCH,
        values.Broadcast,
        example={"type": "flush-cache", "value": {"region": "eu"}},
    ),
    Kind(
        "final_epoch",
        "Adds an empty epoch after the end of input.",
        frozenset({Scope.SOURCE}),
        Where.EPOCH,
        values.FinalEpoch,
        public=False,
        example=1,
    ),
    Kind(
        "renamed",
        "Moves what stands for a query to the uid that it has now.",
        _JOB,
        Where.EPOCH,
        values.Renamed,
        public=False,
    ),
    Kind(
        "align",
        "Keeps queries that have passed a checkpoint's barrier where they are, until it is known what comes of it.",
        _JOB,
        Where.DRIVER,
        values.Align,
        public=False,
    ),
    Kind(
        "release",
        "Puts an aligned event into force, once the barrier of its checkpoint has passed all queries.",
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
        raise ValueError(f"there is a kind of control events named {kind.name!r} already")
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
    """The value of an event in its stored form."""
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
