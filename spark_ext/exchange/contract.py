"""What a kind of exchange implements: a master, a writer and a reader. This file is all that its author has to read.

A kind is found by its name: a package registers its class, a subclass of `ExchangeKind`, as an entry point of the group
`spark_ext.exchange_kinds`. docs/exchange-kinds.md shows a whole one.

An exchange carries the rows of one query, its producer, to any number of others, its consumers. It outlives the
producer: until rows are released, a consumer that comes late, or again, reads the same rows in the same order. It has
a fixed number of partitions and a log; `entries.py` says what the log's entries are, `decisions.py` which may follow
which, and `positions.py` how a reader moves over them. What is left to a kind is where log and rows are stored.

Guaranteed by the callers:

- `ExchangeWriter.write` runs on executors, once or more per task; everything else of a writer and the master runs on
  the driver's machine, in any process and at any time.
- Only entries that a function of `decisions.py` returned are appended.
- Rows are read only when an entry of the log names them, and never once they are released. A process looks at the log
  before it reads an entry's rows.

Required of a kind:

- An entry is durable, whole and visible to every reader when `append` returns, or not there at all. Durable means that
  it survives the end of every process. The kind `arrow` survives a power failure too: it syncs files of rows, and their
  folder, before the entry that names them, and the entry, and its folder, before `append` returns. A reader may see the
  entry some milliseconds earlier. The kind `delta` is as durable as its storage: an object store keeps what it has
  confirmed; on a file system delta-rs syncs nothing, so a power failure may lose or damage the newest entries. The next
  start refuses an exchange that is damaged, or that lacks epochs which the job has committed (`StateError`).
- `append` writes an entry only directly after the state from which it was decided (compare-and-swap): what `decide`
  saw still holds at the moment of the write, however long the process was frozen in between.
- This holds also where another exchange was put into the place of this one meanwhile (see `pinned.py`): what a process
  writes from what it saw of the former is not an entry of the latter, and `append` decides again.
- What `write` has stored is not read before an entry names it, and what no entry names may be deleted by `sweep` only
  after a claim.
- `delete_released` passes `FailPoint.EXCHANGE_BEFORE_DELETING` before each of its steps.
- The description is the file `exchange.json` in the exchange's folder (`place.DescribedPlace`), so that a restore knows
  the kind of an exchange by its folder. The kind `delta`, whose table has it, is the only exception.
- Two exchanges in two folders share nothing, even if they have one id: a restore puts an exchange back beside the one
  that it replaces. What is stored outside of the folder is named by a draw that is in the folder.
- Storage that fails raises an OSError or a StorageError, whichever is at hand.

`spark_ext.testing.exchange_contract` shows all this for any kind.

The three parts follow Flink's shuffle service (FLIP-31).
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from spark_ext.errors import refused
from spark_ext.exchange.descriptor import Descriptor
from spark_ext.exchange.entries import Entry, EntryKind, LogState, Segment
from spark_ext.exchange.positions import Piece
from spark_ext.options import literal_secrets

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_ext.model.commits import Task

Decide: TypeAlias = Callable[[LogState], Entry | None]
"""What to write after a state; None: nothing. May raise, and may be called again."""


@dataclass(frozen=True)
class Held:
    """What an exchange occupies."""

    entries: int  # entries that are not released
    rows: int  # their visible rows
    bytes: int  # the size of their segments
    consumers: tuple[str, ...]  # Uids of the sources that read it
    sealed: bool

    @classmethod
    def of(cls, state: LogState, entries: Mapping[int, Entry]) -> Held:
        """Add up.

        Args:
            state: of the log.
            entries: those that are not released, by number.
        """
        visible = [entry for number, entry in entries.items() if state.passes_over(number) is None]
        return cls(
            len(entries),
            sum(entry.row_count for entry in visible if entry.kind is EntryKind.EPOCH),
            sum(entry.bytes for entry in entries.values()),
            tuple(sorted(state.consumers)),
            state.sealed is not None,
        )


class ExchangeLog(ABC):
    """The log of one exchange, as a process sees it. It keeps its place: a further look reads only what is new."""

    @abstractmethod
    def look(self) -> LogState:
        """Read what was appended since the last look; the state with it.

        Raises:
            StateError: entries are missing or damaged.
            OSError, StorageError: it cannot be read.
        """

    @abstractmethod
    def entry(self, number: int) -> Entry | None:
        """An entry that is not released; None: not written yet.

        Raises:
            StateError: it is damaged.
            OSError, StorageError: it cannot be read.
        """

    @abstractmethod
    def append(self, decide: Decide, writer: str) -> LogState | None:
        """Write the entry that follows from the state.

        Args:
            decide: see `Decide`.
            writer: names the writer, in what a crash may leave behind.

        Returns:
            The state with the entry; None when nothing was written.

        Raises:
            CommitError: other writers were faster in every attempt.
            OSError, StorageError: it cannot be written; whether the entry is there shows the next look.
        """

    @abstractmethod
    def seed(self, state: LogState, entries: Mapping[int, Entry], writer: str) -> None:
        """Write the log of an exchange that has no entries yet: it begins with these, and continues after the last.

        Used to put an exchange back. Numbers below the last one that are not given do not exist; the state says that
        they are released or abandoned. Repeated, also after a crash, it completes what is missing.

        Args:
            state: after the last of the entries.
            entries: by number.
            writer: as in `append`.

        Raises:
            StateError: the log has other entries.
            OSError, StorageError: it cannot be written; the log has all of the entries, or cannot be looked at.
        """


class ExchangeMaster(ABC):
    """The part on the driver: makes the exchange, describes it, and deletes what nobody needs."""

    @abstractmethod
    def register(self, wanted: Descriptor) -> Descriptor:
        """Make the exchange unless it is there; its description, with what may change taken from `wanted`.

        Raises:
            ConfigurationError: it is there with other partitions, another key or schema, or is another job's.
            StateError: something else is in its place.
            OSError, StorageError: it cannot be read or written.
        """

    @abstractmethod
    def describe(self) -> Descriptor | None:
        """Its description; None: the exchange does not exist.

        Raises:
            StateError: something else is in its place.
            OSError, StorageError: it cannot be read.
        """

    @property
    @abstractmethod
    def log(self) -> ExchangeLog:
        """Its log."""

    @abstractmethod
    def delete_released(self) -> None:
        """Delete what the log says is released, with what a crash left of a former call.

        Raises:
            OSError, StorageError: something cannot be deleted.
        """

    @abstractmethod
    def sweep(self, incarnation: int) -> None:
        """After a claim: delete what older incarnations than this have stored and no entry names.

        Raises:
            OSError, StorageError: something cannot be deleted.
        """

    @abstractmethod
    def keep(self, segment: Segment, folder: str) -> None:
        """Copy or link a segment into a savepoint, as the file `data/<segment.name>` of `segment.bytes` bytes.

        It may be there already, from an attempt that was interrupted.

        Raises:
            FileNotFoundError: it was released meanwhile.
            OSError, StorageError: it cannot be read or written.
        """

    @abstractmethod
    def put_back(self, segment: Segment, folder: str) -> Segment:
        """Store a segment that `keep` has written; returns it as this exchange names it from now on.

        It is as durable as one that a task has written.

        Raises:
            OSError, StorageError: it cannot be read or written.
        """

    @abstractmethod
    def delete(self) -> None:
        """Delete what the exchange stores outside of its folder, which the caller deletes next; nothing reads it.

        Raises:
            OSError, StorageError: something cannot be deleted.
        """

    @abstractmethod
    def held(self) -> Held:
        """What it occupies.

        Raises:
            OSError, StorageError: it cannot be read.
        """


class ExchangeWriter(ABC):
    """The part of the producer's tasks."""

    @abstractmethod
    def write(
        self, batches: Iterator[tuple[pa.RecordBatch, Sequence[int] | None]], task: Task, partitions: int
    ) -> Segment | None:
        """Store a task's rows, by partition, in their order.

        Args:
            batches: rows, and the partition of each row; None: the kind chooses, evenly.
            task: the task.
            partitions: how many there are.

        Returns:
            What was stored; None when there were no rows.

        Raises:
            OSError, StorageError: it cannot be written.
        """


class ExchangeReader(ABC):
    """The part of the consumers' tasks."""

    @abstractmethod
    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The rows of a piece, in order.

        Raises:
            StateError: they are damaged.
            OSError, StorageError: they cannot be read.
        """


@dataclass(frozen=True)
class Parts:
    """The three parts of one kind, for one exchange."""

    master: ExchangeMaster
    writer: ExchangeWriter
    reader: ExchangeReader


NOTHING_STARTED: Final = "nothing was started"
_REFERENCE: Final = re.compile(r"\$\{\w+\}|(env|file):.+")
Self = TypeVar("Self", bound="KindOptions")


class KindOptions(BaseModel):
    """Options of a kind: a subclass declares them as fields. Without fields, the kind has none.

    They are stored with the exchange, so a secret is named by its place: `env:NAME`, `file:PATH` or `${NAME}`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def parse(cls: type[Self], kind: str, given: Mapping[str, str], operator: str) -> Self:
        """The options from their stored form.

        Raises:
            ConfigurationError: one is unknown, missing or invalid, or holds a secret itself.
        """
        for name, value in given.items():
            for secret in literal_secrets(name, value):
                if not _REFERENCE.fullmatch(secret):
                    what = f"the option '{name}' of the exchange kind '{kind}' holds a secret, and would be stored"
                    do = "name its place instead: env:NAME, file:PATH or ${NAME}"
                    raise refused(what, operator, do, kept=NOTHING_STARTED)
        try:
            return cls.model_validate(given)
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False)[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            do = f"use: {', '.join(sorted(cls.model_fields)) or 'none, as the kind has no options'}"
            what = f"option '{name}' of the exchange kind '{kind}': {first['msg']}"
            raise refused(what, operator, do, kept=NOTHING_STARTED) from None


def as_text(options: Mapping[str, object]) -> dict[str, str]:
    """Options as they are stored: text as it is, everything else as JSON."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}


def kind_options(operator: Mapping[str, str]) -> dict[str, str]:
    """The options of the kind among those of a source or sink, by name in lower case."""
    found: dict[str, str] = json.loads(operator.get("kind_options", "{}"))
    return found


OptionsOfKind = TypeVar("OptionsOfKind", bound=KindOptions)


class ExchangeKind(ABC, Generic[OptionsOfKind]):
    """A kind of exchange. Made once per process, without arguments."""

    name: ClassVar[str]  # by which jobs ask for it; also that of its entry point
    options_type: ClassVar[type[Any]] = KindOptions  # a subclass of `KindOptions`

    @abstractmethod
    def parts(self, place: str, options: OptionsOfKind, operator: str) -> Parts:
        """The three parts of the exchange in a folder. Called by any process; cheap, and without any connection.

        Args:
            place: path or URI of the folder, which need not exist.
            options: those of the kind; all processes are given the same.
            operator: the exchange, for messages.

        Raises:
            ConfigurationError: the kind cannot store anything there.
            EnvironmentProblem: a library is not installed.
        """
