"""The metadata in a checkpoint's row: versioned JSON with a part per query and, in it, one per operator. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from spark_ext.errors import StateError
from spark_ext.model.end_of_input import EndOffset
from spark_ext.model.offsets import SourceOffset

VERSION = 2
"""The version that is written.

* 1: the fields of the first form.
* 2: sinks have positions, and the metadata says what is in flight in each exchange.
"""


class Finish(str, Enum):
    """How far a source had finished. A restore treats each case differently."""

    NONE = "none"
    PARTLY = "partly"  # some channels have finished: they are not read again, the others continue
    FULLY = "fully"  # all channels have finished, in this incarnation
    ON_RESTORE = "on_restore"  # it had finished before this incarnation; no part of it was started


@dataclass(frozen=True)
class SourceMetadata:
    """A source in a checkpoint."""

    format: str
    options: Mapping[str, str]  # secrets masked
    offset: SourceOffset | None  # its offset at the cut; None before its first epoch
    finish: Finish = Finish.NONE
    sequence: int = 0  # finish flags up to this sequence belong to the checkpoint; later ones do not


@dataclass(frozen=True)
class SinkMetadata:
    """A sink in a checkpoint."""

    format: str
    options: Mapping[str, str]  # secrets masked
    position: Any = None  # where its target was at the cut, in the sink's own form; None: nowhere yet, or not kept
    asked: bool = False  # for its position; never in version 1, where a position of None says nothing


@dataclass(frozen=True)
class QueryMetadata:
    """A query in a checkpoint."""

    query_id: str | None  # Spark's id; None before its first start
    epoch: int | None  # the cut: the last epoch that belongs to the checkpoint
    finished: bool = False
    sources: Mapping[str, SourceMetadata] = field(default_factory=dict)
    sinks: Mapping[str, SinkMetadata] = field(default_factory=dict)
    ends: Mapping[str, EndOffset] = field(default_factory=dict)


@dataclass(frozen=True)
class ExchangeMetadata:
    """An exchange in a checkpoint: the entries from `first` up to, and without, `end` are in flight."""

    kind: str
    first: int  # the first entry that some query has not read in full at its cut
    end: int  # those below belong to the cut of the query that writes the exchange
    sealed: bool = False  # whether that query had finished: no row follows


@dataclass(frozen=True)
class CheckpointMetadata:
    """A consistent cut of a job."""

    job: str
    lineage: int
    incarnation: int
    queries: Mapping[str, QueryMetadata]
    exchanges: Mapping[str, ExchangeMetadata] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The JSON form of the version that is written."""
        return {
            "version": VERSION,
            "job": self.job,
            "lineage": self.lineage,
            "incarnation": self.incarnation,
            "queries": {uid: _query_json(query) for uid, query in self.queries.items()},
            "exchanges": {name: asdict(exchange) for name, exchange in self.exchanges.items()},
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> CheckpointMetadata:
        """Read this version or the former one."""
        if raw.get("version") not in range(1, VERSION + 1):
            raise StateError(
                f"checkpoint metadata of version {raw.get('version')!r} is not known; "
                f"this release reads versions 1 to {VERSION}",
                operator=f"job '{raw.get('job')}'",
                kept="the checkpoint is unchanged",
                do="use the release of spark-ext that wrote it, or a newer one",
            )
        return cls(
            raw["job"],
            raw["lineage"],
            raw["incarnation"],
            {uid: _query(part) for uid, part in raw["queries"].items()},
            {name: ExchangeMetadata(**part) for name, part in raw.get("exchanges", {}).items()},
        )


def finish_of(offset: SourceOffset | None, *, started: bool = True) -> Finish:
    """How far a source had finished at an offset, which is None before its first epoch."""
    if not started:
        return Finish.ON_RESTORE
    if offset is None or (not offset.ended and offset.sequence == 0):
        return Finish.NONE
    return Finish.FULLY if offset.ended else Finish.PARTLY


def _query_json(query: QueryMetadata) -> dict[str, Any]:
    return {
        "query_id": query.query_id,
        "epoch": query.epoch,
        "finished": query.finished,
        "sources": {
            uid: {
                "format": source.format,
                "options": dict(source.options),
                "offset": None if source.offset is None else source.offset.to_json(),
                "finish": source.finish.value,
                "sequence": source.sequence,
            }
            for uid, source in query.sources.items()
        },
        "sinks": {
            uid: {
                "format": sink.format,
                "options": dict(sink.options),
                **({"position": sink.position} if sink.asked else {}),
            }
            for uid, sink in query.sinks.items()
        },
        "ends": {uid: end.to_json() for uid, end in query.ends.items()},
    }


def _query(raw: Mapping[str, Any]) -> QueryMetadata:
    return QueryMetadata(
        raw["query_id"],
        raw["epoch"],
        raw["finished"],
        {uid: _source(part) for uid, part in raw["sources"].items()},
        {uid: _sink(part) for uid, part in raw["sinks"].items()},
        {uid: EndOffset.from_json(part) for uid, part in raw["ends"].items()},
    )


def _sink(raw: Mapping[str, Any]) -> SinkMetadata:
    return SinkMetadata(raw["format"], raw["options"], raw.get("position"), "position" in raw)


def _source(raw: Mapping[str, Any]) -> SourceMetadata:
    offset = None if raw["offset"] is None else SourceOffset.from_json(raw["offset"])
    return SourceMetadata(raw["format"], raw["options"], offset, Finish(raw["finish"]), raw["sequence"])
