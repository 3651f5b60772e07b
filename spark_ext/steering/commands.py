"""What may be asked of a job, as methods: one for each kind of control event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from spark_ext.model.offsets import Json
    from spark_ext.steering.sent import SentEvent

    class How(TypedDict, total=False):
        """How an event is sent; see `Commands`."""

        delivery: str
        idempotency_key: str | None
        expires: datetime | str | int | None
        wait: bool | float


class Commands(ABC):
    """The kinds of control events as methods; base of `Control`.

    All methods take these arguments too:

    * `delivery`: `immediate`, or `aligned` for all queries at one cut of the job.
    * `idempotency_key`: names the request: repeated with it, it is accepted once.
    * `expires`: when the event is not to be obeyed any more if that has not begun: a time with a zone, or a duration
      from now on, such as `"10 min"` or a number of milliseconds.
    * `wait`: True, or a number of seconds: wait as `SentEvent.wait` does, and raise what it raises.

    All raise `ControlRefused` when the event is refused, and StateError or StorageError when the ledger or server
    cannot be reached.
    """

    @abstractmethod
    def send(self, kind: str, target: str = "job", value: Json = None, **how: Unpack[How]) -> SentEvent:
        """Send an event of any kind, those of plugins included.

        Args:
            target: `job`, `query:UID`, `source:UID`, `source:UID/CHANNEL` or `sink:UID`.
        """

    # -- in force until another one takes its place -------------------------------------------------------------------

    def rate_limit(
        self,
        target: str,
        rows_per_second: float | None = None,
        *,
        bytes_per_second: float | None = None,
        rows_per_epoch: int | None = None,
        older_than: str | int | None = None,
        **how: Unpack[How],
    ) -> SentEvent:
        """Limit how fast a source or a channel is read; without any limit, lift those that are in force.

        Args:
            target: `source:UID` or `source:UID/CHANNEL`.
            rows_per_epoch: of one epoch at most.
            older_than: a duration: the limits hold only for channels whose next rows are older.
        """
        value = {
            "rows_per_second": rows_per_second,
            "bytes_per_second": bytes_per_second,
            "rows_per_epoch": rows_per_epoch,
            "older_than": older_than,
        }
        given = {name: one for name, one in value.items() if one is not None}
        return self.send("rate_limit", target, given or None, **how)

    def pause(self, target: str = "job", **how: Unpack[How]) -> SentEvent:
        """Read nothing of the job, a query, a source or a channel; queries keep running."""
        return self.send("pause", target, **how)

    def resume(self, target: str = "job", **how: Unpack[How]) -> SentEvent:
        """End the pause of the same target. Limits stay in force."""
        return self.send("resume", target, **how)

    def sample(self, target: str, fraction: float | None, **how: Unpack[How]) -> SentEvent:
        """Read a share of the rows of a source or channel, chosen by channel and position; None: read all again."""
        return self.send("sample", target, None if fraction is None else {"fraction": fraction}, **how)

    def interval(self, interval: str | int | None, target: str = "job", **how: Unpack[How]) -> SentEvent:
        """Set the minimum time between the starts of two data epochs, ms or such as `"10 s"`; None: as before."""
        return self.send("trigger_interval", target, None if interval is None else {"interval": interval}, **how)

    def checkpoint_config(self, settings: Mapping[str, Json] | None, **how: Unpack[How]) -> SentEvent:
        """Change settings of checkpoints; None: as the job was started with."""
        return self.send("checkpoint_config", "job", None if settings is None else dict(settings), **how)

    def log_level(self, level: str, logger: str = "", **how: Unpack[How]) -> SentEvent:
        """Set the level of one logger, or of the root, in the driver, the executors and Python workers."""
        return self.send("log_level", "job", {"level": level, "logger": logger}, **how)

    def set(self, key: str, value: Json, query: str | None = None, **how: Unpack[How]) -> SentEvent:
        """Set a key of your own configuration, for the job or for one query."""
        return self.send("set_config", _target(query), {"key": key, "value": value}, **how)

    def unset(self, key: str, query: str | None = None, **how: Unpack[How]) -> SentEvent:
        """Remove a key of your own configuration, of the job or of one query."""
        return self.send("set_config", _target(query), {"key": key, "unset": True}, **how)

    def schema(self, key: str, schema: Mapping[str, Any] | bool, **how: Unpack[How]) -> SentEvent:
        """Declare the JSON Schema of a key: values that do not conform are refused from then on; True takes any."""
        value = schema if isinstance(schema, bool) else dict(schema)
        return self.send("config_schema", "job", {"key": key, "schema": value}, **how)

    # -- obeyed once --------------------------------------------------------------------------------------------------

    def checkpoint(self, **how: Unpack[How]) -> SentEvent:
        """Take an aligned checkpoint; the result has its number."""
        return self.send("checkpoint", **how)

    def savepoint(self, path: str | Path, *, aligned: bool = False, **how: Unpack[How]) -> SentEvent:
        """Take a savepoint into a folder that is empty or missing, as the driver sees it."""
        value: dict[str, Json] = {"path": str(path)}
        return self.send("savepoint", "job", {**value, "aligned": True} if aligned else value, **how)

    def drain(self, **how: Unpack[How]) -> SentEvent:
        """End the job in order: sources stop, windows are emitted, the job finishes. It cannot be taken back."""
        return self.send("drain", **how)

    def stop(self, **how: Unpack[How]) -> SentEvent:
        """Stop the job where it is; a further start continues there."""
        return self.send("stop", **how)

    def restart(self, target: str = "job", **how: Unpack[How]) -> SentEvent:
        """Stop queries at an epoch boundary, and start them."""
        return self.send("restart", target, **how)

    def seek(self, source: str, channel: str, position: Json, *, yes: bool = False, **how: Unpack[How]) -> SentEvent:
        """Continue a channel at another position: the rows between are skipped, or read again."""
        return self.send("seek", f"source:{source}/{channel}", {"position": position, "yes": yes}, **how)

    def stack_dump(self, **how: Unpack[How]) -> SentEvent:
        """Write the stacks of the driver's threads into the state directory; the result has the path."""
        return self.send("stack_dump", **how)

    def dump(self, *, heap: bool = False, **how: Unpack[How]) -> SentEvent:
        """Write the stacks of all processes of the job into the state directory; the result has the path.

        Args:
            heap: whether the heap of the driver's JVM is written too. The JVM stands still meanwhile, and no secret in
                the heap is masked.
        """
        return self.send("dump", value={"heap": heap}, **how)

    def broadcast(self, type: str, value: Json = None, query: str | None = None, **how: Unpack[How]) -> SentEvent:
        """Send an event of your own to the functions of all queries, or of one."""
        return self.send("broadcast", _target(query), {"type": type, "value": value}, **how)


def _target(query: str | None) -> str:
    return "job" if query is None else f"query:{query}"
