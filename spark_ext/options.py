"""Options of sources and sinks: declared once, as a pydantic model, and refused early if they are invalid.

Spark passes options as strings under case-insensitive names. A connector declares a frozen subclass of `Options`; its
fields document every option. An unknown name is refused, with the closest known name as a hint.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from spark_ext import masking
from spark_ext.errors import refused

if TYPE_CHECKING:
    import pandas as pd

# The form of a uid: it becomes part of file names, table rows and transaction ids.
UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.~-]{0,127}")

# Options that Spark itself adds, and how the names of those begin that a job adds: connectors do not see them.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "path"})
JOBS_OWN = "spark_ext."

# Up to the last `@`: a password may contain one, or a slash, that should have been encoded.
_PASSWORD_IN_ADDRESS = re.compile(r"(://[^/@:]*:)(\S+)@")

_SECRET = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|(api|access|account|private|encryption)[._-]?key|authorization|"
    r"signature|jaas|dsn|sas$|storage_options|key[._-]pem",
    re.IGNORECASE,
)

PLACES = frozenset(
    {"path", "url", "host", "port", "database", "dbname", "bucket", "table", "query"}
    | {"topic", "topics", "servers", "bootstrap_servers"}
)
"""Options that by convention say what an operator reads from or writes to."""

_LOCATIONS = frozenset({"path", "outbox", "staging"})  # options whose values are paths or URIs
_IN_NO_ORDER = frozenset({"topics", "servers", "bootstrap_servers"})  # and sets, as text or as a list
_PARAMETER_OF_ADDRESS = re.compile(r"([?&;])([^=&;#\s]+)=([^&;#\s]+)")

# In libpq's `key=value` form and in JAAS settings.
_PASSWORD_OF_CONNECTION = re.compile(
    r"""\b\w*(?:password|secret|token)\s*=\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s&;]+)""", re.IGNORECASE
)
# In SQL and in libpq's `options`: a literal behind a name that says what it is, such as `PASSWORD 'x'`.
_PASSWORD_IN_TEXT = re.compile(
    r"""\b\w*(?:passw(?:or)?d|passphrase|secret|token|api_?key|access_?key)["']?\s*(?:=>|:=|[=:,]|\s)\s*E?"""
    r"""('(?:[^'\\]|\\.|'')+'|"(?:[^"\\]|\\.)+")|\b\w*passw(?:or)?d=([^\s&;'",)]+)""",
    re.IGNORECASE,
)
# Names inside a secret mapping, such as `security.protocol`, whose values are in many messages and are not secret.
_SETTING = re.compile(
    r"(^|[._-])(region|endpoint|protocol|mechanisms?|bucket|timeout|interval|ms|location|type|level|algorithm)([._-]|$)",
    re.IGNORECASE,
)

Self = TypeVar("Self", bound="Options")


def milliseconds(value: object) -> int:
    """`"90 s"`, `"1 hour"` or a number of milliseconds, as milliseconds."""
    if isinstance(value, int) and value >= 0:
        return value
    text = str(value).strip()
    if text.isdigit():
        return int(text)
    import pandas as pd  # here, because it takes half a second, and each task's process imports this module

    try:
        span = pd.Timedelta(text)
    except ValueError as problem:
        raise ValueError(f"{text!r} is not a duration such as '500 ms', '90 s' or '1 hour'") from problem
    if span < pd.Timedelta(0):
        raise ValueError(f"{text!r} is a negative duration")
    return int(span.total_seconds() * 1000)


def instant(text: str) -> pd.Timestamp:
    """An ISO 8601 time, in UTC if it has no zone; else a ValueError."""
    import pandas as pd  # as above

    parsed = pd.Timestamp(text)
    return cast("pd.Timestamp", parsed.tz_localize("UTC")) if parsed.tzinfo is None else parsed


def byte_count(value: object) -> int:
    """`"128m"`, `"64 KiB"` or a plain number, as bytes."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)i?b?\s*", str(value), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{value!r} is not a size such as '1048576', '64k', '128m' or '1g'")
    return int(match[1]) << 10 * " kmgt".index(match[2].lower() or " ")


def comma_separated(value: object) -> object:
    """`"day, carrier"` as `("day", "carrier")`; empty parts are dropped, anything but text is returned as it is."""
    return tuple(part for raw in value.split(",") if (part := raw.strip())) if isinstance(value, str) else value


def json_object(value: object) -> object:
    """`'{"name": "value"}'` as a mapping of strings; anything but text is returned as it is."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        raise ValueError('this is not a JSON object of strings such as {"name": "value"}')
    return found


def new_names(form: str, *, signs: bool = False) -> Callable[[object], object]:
    """Reads names and what they become: of a form such as 'a=x', separated by commas, or a JSON object.

    With `signs` the last equals sign separates the two, else a name with one needs JSON. Anything but text is returned
    as it is.
    """

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("{"):
            try:
                pairs = json.loads(value, object_pairs_hook=list)
            except json.JSONDecodeError:
                raise ValueError("this is not a JSON object of names") from None
        else:
            parts = (part.rsplit("=", 1) if signs else part.split("=") for part in value.split(",") if part.strip())
            pairs = [tuple(name.strip() for name in part) for part in parts]
        for pair in pairs:
            if len(pair) != 2 or not all(isinstance(name, str) and name for name in pair):
                raise ValueError(f"{value!r} is not of the form '{form}, ...', or a JSON object")
        for place, what in enumerate(("renamed twice", "the new name of two columns")):
            names = [pair[place] for pair in pairs]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"'{twice[0]}' is {what}")
        return dict(pairs)

    return read


def written_to(options: Mapping[str, str], *, sink: bool) -> list[str]:
    """Where an operator writes, as its options say: its bad rows, and if it is a sink to its path."""
    given = {name.lower(): value for name, value in options.items()}
    names = ("path", "bad_rows_path") if sink else ("bad_rows_path",)
    return [given[name] for name in names if given.get(name)]


def several(value: object) -> object:
    """A list, or one value as a list."""
    return value if isinstance(value, (list, tuple)) else [value]


Milliseconds = Annotated[int, BeforeValidator(milliseconds)]
"""A duration option, in ms; accepts `"90 s"`."""

Bytes = Annotated[int, BeforeValidator(byte_count)]
"""A size option, in bytes; accepts `"128m"`."""

CommaSeparated = BeforeValidator(comma_separated)
"""Splits the text of an option that holds several values."""

Names = Annotated[tuple[str, ...], CommaSeparated]
"""An option of several names; accepts `"day, carrier"`."""

Pairs = Annotated[Mapping[str, str], BeforeValidator(json_object)]
"""An option of names and values; accepts a JSON object of strings."""


def unknown(
    kind: str, name: str, known: Iterable[str], foreign: Mapping[str, str], operator: str
) -> tuple[str, str, str]:
    """The refusal of an unknown option or setting: the arguments of `refused`."""
    names = sorted(known)
    instead = foreign.get(name.lower())
    if instead is not None and instead not in names:
        return f"unknown {kind} '{name}'", operator, instead
    near = [instead] if instead else difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"unknown {kind} '{name}'{hint}", operator, f"use one of: {', '.join(names)}"


class Options(BaseModel):
    """Base of a connector's options: immutable, no unknown names, every connector has a `uid`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    secret_fields: ClassVar[frozenset[str]] = frozenset()
    """Further options, besides the obvious ones (password, token, ...), whose values are never written anywhere."""

    identity_fields: ClassVar[frozenset[str]] = PLACES
    """The options that say what the operator reads from or writes to, so far as it has them. A job remembers their
    values, and refuses a start with others: positions and epochs of one place mean nothing in another."""

    moving_fields: ClassVar[frozenset[str]] = frozenset()
    """Of `identity_fields` of a sink, those that may change on request while an epoch is planned and not committed, as
    what is committed is recorded elsewhere."""

    by_name: ClassVar[str | None] = None
    """The option that stands for `path` and is a table's name in a catalogue of the session, if there is one. A job
    replaces it by the table's location when the query is added."""

    foreign_names: ClassVar[Mapping[str, str]] = {}
    """What stands for options of other systems that users may give, by name in lower case: an option, or what to do."""

    uid: str = Field(pattern=f"^{UID.pattern}$")
    """The operator's stable name within its job; its state is stored under this name."""

    @classmethod
    def parse(cls: type[Self], connector: str, raw: Mapping[str, str]) -> Self:
        """Build the options from what Spark passes.

        Args:
            connector: format name, for messages.
            raw: options by name, in any case.

        Raises:
            ConfigurationError: an option is unknown, missing or invalid; names the operator and the option.
        """
        given = {name.lower(): value for name, value in raw.items() if not name.lower().startswith(JOBS_OWN)}
        cls.keep_secret(given)
        for name in SPARKS_OWN - cls.model_fields.keys():
            given.pop(name, None)
        operator = f"{connector} {given.get('uid') or '(no uid)'}"
        if not given.get("uid"):
            raise refused(
                "the option 'uid' is missing: it names this operator's state, so that a restart finds it again",
                operator,
                f'add .option("uid", "<a stable name>") to the {connector} operator',
            )
        for name in given.keys() - cls.model_fields.keys():
            raise refused(*unknown("option", name, cls.model_fields, cls.foreign_names, operator))
        try:
            return cls.model_validate(given)
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            # An error of several options has no name, and its input is all of them, secrets included.
            hidden = not name or cls.is_secret(name) or first["type"] == "missing"
            shown = "" if hidden else f" (given: {cls.shown(name, first['input'])!r})"
            which = f"option '{name}'" if name else "options"
            raise refused(f"{which}: {first['msg']}{shown}", operator, f"correct the {which}") from None

    @classmethod
    def is_secret(cls, name: str) -> bool:
        """Whether the value of this option must not be shown or stored."""
        return name in cls.secret_fields or _SECRET.search(name) is not None

    @classmethod
    def shown(cls, name: str, value: Any) -> Any:
        """A value as it may be shown and stored: secrets are replaced by `***`, also inside an address."""
        if value is not None and cls.is_secret(name):
            return "***"
        if not isinstance(value, str):
            return value
        value = _PASSWORD_IN_TEXT.sub(lambda found: found[0].replace(found[1] or found[2], "***"), value)
        if "://" not in value:
            return value
        return _PARAMETER_OF_ADDRESS.sub(_without_secret, _PASSWORD_IN_ADDRESS.sub(r"\1***@", value))

    @classmethod
    def keep_secret(cls, given: Mapping[str, Any]) -> None:
        """Have all secrets among these options, by name in lower case, masked in errors, log and ledger."""
        masking.remember(*(text for name, value in given.items() for text in cls._secrets(name, value)))

    @classmethod
    def _secrets(cls, name: str, value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield from _secrets_of_address(value)
            yield from passwords_in(value)
        if not cls.is_secret(name):
            return
        if isinstance(value, str):
            try:
                found = json.loads(value)
            except ValueError:
                found = None
            if not isinstance(found, dict):
                yield value
                yield from (_unquoted(match[1]) for match in _PASSWORD_OF_CONNECTION.finditer(value))
                return
            value = found
        if isinstance(value, Mapping):
            for inner, one in value.items():
                if "header" in name or not _SETTING.search(str(inner)):
                    yield from cls._secrets(name, one)

    def __setstate__(self, state: Any) -> None:
        """In another process of the job, which has to keep the secrets as well."""
        super().__setstate__(state)
        self.keep_secret(self.model_dump())

    def identity(self) -> dict[str, str]:
        """What the operator reads from or writes to, by option, secrets masked: equal for the same place.

        Options without a value are left out. A local path is absolute, as its meaning depends on the working directory.
        """
        given = self.model_dump(mode="json", include=set(self.identity_fields & type(self).model_fields.keys()))
        return {name: _place(name, self.shown(name, value)) for name, value in given.items() if value not in (None, [])}

    def public(self) -> dict[str, Any]:
        """The options as plain values, secrets replaced by `***`: what may be stored in a table and shown."""
        return {name: self.shown(name, value) for name, value in self.model_dump(mode="json").items()}


def literal_secrets(name: str, value: str) -> Iterator[str]:
    """The secrets in the text of an option, also in a JSON object of settings; some may only refer to a secret."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if isinstance(found, dict):
        for inner, one in found.items():
            yield from literal_secrets(str(inner), one if isinstance(one, str) else json.dumps(one))
    elif Options.is_secret(name) and value:
        yield value
    else:
        yield from _secrets_of_address(value)
        yield from passwords_in(value)


def passwords_in(text: str) -> Iterator[str]:
    """The passwords inside a text of SQL or of libpq's `options`, by the names before them."""
    for found in _PASSWORD_IN_TEXT.finditer(text):
        yield found[2] or _unquoted(found[1]).replace("''", "'")


def _secrets_of_address(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    yield from (match[2] for match in _PASSWORD_IN_ADDRESS.finditer(text))
    yield from (match[3] for match in _PARAMETER_OF_ADDRESS.finditer(text) if is_secret_parameter(match[2]))


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[:1] in ("'", '"') else text


def _place(name: str, value: Any) -> str:
    if name in _IN_NO_ORDER:
        parts = value.split(",") if isinstance(value, str) else map(str, value)
        return ",".join(sorted({part.strip() for part in parts}))
    if name not in _LOCATIONS or not isinstance(value, str):
        return str(value)
    parsed = urlsplit(value)
    if parsed.scheme.lower() == "file":
        value = unquote(parsed.path)
    elif "://" in value:
        return value.rstrip("/")
    return os.path.normpath(Path(value).expanduser().absolute())


def _without_secret(parameter: re.Match[str]) -> str:
    mark, name, value = parameter.groups()
    return f"{mark}{name}={'***' if is_secret_parameter(name) else value}"


def is_secret_parameter(name: str) -> bool:
    """Whether the value of a parameter in an address, `?name=value`, must not be shown."""
    return _SECRET.search(name) is not None or name.lower() in ("key", "sig", "code")
