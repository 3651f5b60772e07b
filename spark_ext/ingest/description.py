"""What an inbox is: its description, which the job writes and gateways read. Pure.

    <state>/inboxes/<name>/inbox.json        this description
    <state>/inboxes/<name>/drain.json        written by a drain: gateways answer 503, seal their logs, and stop
    <state>/inboxes/<name>/gateways/<g>/     the log of one gateway, which is a channel; see `log.py`
    <state>/inboxes/<name>/decisions/        which events are repeats; see `decisions.py`

Secrets are not part of it: it says where a gateway finds them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

from spark_ext.errors import RESET, ConfigurationError, StateError, refused
from spark_ext.options import UID, byte_count, milliseconds

VERSION: Final = 1
ABOUT: Final = "inbox.json"
DRAIN: Final = "drain.json"
GAPS: Final = "gaps"
GATEWAYS: Final = "gateways"
DECISIONS: Final = "decisions"

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR

ACKS: Final = ("disk", "store", "table", "none")
"""What an answer promises: the gateway's disk, the object store or the table has the events; or nothing."""

PERSISTS: Final = ("continuous", "checkpoint")
"""When events are made durable: as they arrive, or as part of the epoch that carries them."""

ON_BAD_ROW: Final = ("quarantine", "reject")
"""What is done about an event that does not fit the columns: it is a bad row, or its request is answered with 422."""

SCHEMES: Final[Mapping[str, int]] = {
    "": 7 * DAY,
    "standard": 7 * DAY,
    "stripe": 31 * DAY,
    "github": 8 * DAY,
    "shopify": 7 * DAY,
    "slack": 7 * DAY,
    "cloudevents": 7 * DAY,
    "idempotency-key": 7 * DAY,
    "pointer": 7 * DAY,
    "sequence": 7 * DAY,
}
"""Who sends, and for how long a redelivery has to be known, ms; "": any sender, by whatever identity it gives."""

SIGNED: Final = frozenset({"standard", "stripe", "github", "shopify", "slack"})
"""Schemes with a signature: without a secret nothing is accepted."""

IMPATIENT: Final = frozenset({"slack", "shopify"})
"""Schemes whose senders wait for a few seconds only, and count an answer that comes later as a failure."""


@dataclass(frozen=True)
class InboxDescription:
    """An inbox, as its folder describes it. All but `name`, `id` and `job_id` may change from one start to the next."""

    name: str
    id: str  # drawn when the inbox is made: positions in one that was deleted mean nothing in the next of its name
    job_id: str
    columns: Mapping[str, Any] | None = None  # the schema of typed rows in Spark's JSON form; None: raw rows
    scheme: str = ""  # a key of `SCHEMES`
    pointer: str = ""  # for the scheme `pointer`: a JSON pointer to the identity in the body
    secrets: tuple[str, ...] = ()  # where each secret is: `env:NAME` or `file:PATH`
    tokens: str = ""  # path of a token file; its tokens with the scope `ingest` may send
    on_bad_row: str = "quarantine"  # one of `ON_BAD_ROW`
    ack: str = "disk"  # one of `ACKS`
    persist: str = "continuous"  # one of `PERSISTS`
    dedup_window: int = 7 * DAY  # for how long identities are known, ms
    max_bytes: int = 1 << 30  # of logs and segments that no job has read, per gateway; more is answered with 429
    max_body: int = 1 << 20  # bytes of one request, decompressed

    @classmethod
    def wanted(
        cls,
        name: str,
        who: str,
        *,
        secrets: str | Sequence[str],
        dedup_window: str | int | None,
        max_bytes: str | int,
        max_body: str | int,
        **others: Any,
    ) -> InboxDescription:
        """What a job asks for, which has no id yet; refuses wrong settings by name."""
        window = SCHEMES.get(others["scheme"], 0) if dedup_window is None else dedup_window
        try:
            found = cls(
                name,
                new_id(),
                "",
                secrets=(secrets,) if isinstance(secrets, str) else tuple(secrets),
                dedup_window=milliseconds(window),
                max_bytes=byte_count(max_bytes),
                max_body=byte_count(max_body),
                **others,
            )
        except ValueError as problem:
            raise refused(str(problem), who, "give a duration such as '7 days', or a size such as '1 GiB'") from None
        found.check(who)
        return found

    def check(self, who: str) -> None:
        """Refuse settings that are wrong or do not go together, by name."""

        def refuse_if(wrong: bool, what: str, do: str) -> None:
            if wrong:
                raise refused(what, who, do)

        refuse_if(
            not UID.fullmatch(self.name),
            f"'{self.name}' cannot be an inbox's name",
            "use letters, digits and . _ ~ -, beginning with a letter or digit, at most 128",
        )
        one_of = {"scheme": tuple(SCHEMES), "on_bad_row": ON_BAD_ROW, "ack": ACKS, "persist": PERSISTS}
        for setting, known in one_of.items():
            value, do = getattr(self, setting), f"use one of: {', '.join(map(repr, known))}"
            refuse_if(value not in known, f"{setting} is {value!r}", do)
        what = f"the scheme '{self.scheme}' has signatures, and no secret is given"
        refuse_if(self.scheme in SIGNED and not self.secrets, what, "give secrets=('env:NAME',)")
        what = "a secret says where it is found: 'env:NAME' or 'file:PATH'"
        named = all(
            kind in ("env", "file") and where for kind, _, where in (one.partition(":") for one in self.secrets)
        )
        refuse_if(not named, what, "give secrets=('env:NAME',), not the secret itself")
        what = "pointer belongs to scheme='pointer'"
        refuse_if((self.scheme == "pointer") != bool(self.pointer), what, "give both, or none")
        what = "on_bad_row='reject' needs columns that an event may not fit"
        refuse_if(self.on_bad_row == "reject" and self.columns is None, what, "declare them with schema")
        what = f"senders of the scheme '{self.scheme}' wait for a few seconds, and the job takes longer"
        do = "use ack='disk' or ack='store', with persist='continuous'"
        refuse_if(self.waits_for_job and self.scheme in IMPATIENT, what, do)
        what = f"max_bytes is {self.max_bytes}, and max_body is {self.max_body}"
        refuse_if(self.max_body < 1, what, "give a max_body of at least one byte")
        refuse_if(self.max_bytes <= self.max_body, what, "give a larger max_bytes: no event of max_body could be held")

    @property
    def waits_for_job(self) -> bool:
        """Whether the job has to do something before an event is acknowledged."""
        return self.ack == "table" or (self.persist == "checkpoint" and self.ack != "none")

    @property
    def operator(self) -> str:
        """The inbox, for messages."""
        return f"inbox '{self.name}'"

    @cached_property
    def columns_text(self) -> str:
        """The schema as text, by which what is made of it is remembered."""
        return json.dumps(self.columns)

    def to_json(self) -> str:
        """The form that is stored."""
        return json.dumps({"version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str, operator: str) -> InboxDescription:
        """Read a stored form."""
        try:
            raw = json.loads(text)
            version = raw.pop("version")
            if version == VERSION:
                found = cls(**{**raw, "secrets": tuple(raw["secrets"])})
                if found._of_its_types():
                    return found
                version = None
        except (ValueError, AttributeError, KeyError, TypeError):
            version = None
        what = "its description is damaged" if version is None else f"its description has version {version!r}"
        raise StateError(
            f"{what}; this release reads version {VERSION}",
            operator=operator,
            kept="the inbox is unchanged; nothing was started",
            do="restore the file from a backup, or use the release of spark-ext that wrote it",
        )

    def _of_its_types(self) -> bool:
        kinds: dict[Any, type] = {"str": str, "int": int}
        return (
            all(type(getattr(self, one.name)) is kinds[one.type] for one in fields(self) if one.type in kinds)
            and all(type(one) is str for one in self.secrets)
            and (self.columns is None or type(self.columns) is dict)
        )

    def in_folder(self, name: str, operator: str) -> InboxDescription:
        """This description; refuses a folder that was copied from that of another inbox, with all of its events."""
        if name == self.name:
            return self
        raise StateError(
            f"the folder is that of inbox '{self.name}': it was copied or renamed",
            operator=operator,
            kept="the inbox is unchanged; nothing was started",
            do="remove the copy, or give the folder its name back",
        )

    def merged(self, wanted: InboxDescription) -> InboxDescription:
        """This description with what a job asks for now.

        Raises:
            ConfigurationError: it belongs to another job.
        """
        if self.job_id != wanted.job_id:
            raise ConfigurationError(
                "the inbox belongs to another job, or to this one before its state was deleted",
                operator=self.operator,
                kept="the inbox is unchanged; nothing was started",
                do=f"give the inbox another name, or restore the job's state; {RESET} keeps inboxes",
            )
        return replace(wanted, id=self.id)


def new_id() -> str:
    """An id for a new inbox or gateway."""
    return secrets.token_hex(8)
