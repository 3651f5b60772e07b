"""How keys and values are decoded, and the schemas by which they are, pinned when the query is defined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_ext.clients.pinned_schemas import Pinned
from spark_ext.clients.schema_registry import kept_registry
from spark_ext.errors import refused
from spark_ext.sources.kafka_range.decoding import Avro, Decoder, JsonText, Protobuf
from spark_ext.sources.kafka_range.options import COLUMNS

if TYPE_CHECKING:
    from spark_ext.sources.kafka_range.options import KafkaRangeOptions


class Formats:
    """The decoders of a source.

    Spark asks for the source's schema once, and sends the source to the planner and to tasks afterwards: they all have
    the schemas that were pinned then.
    """

    def __init__(self, options: KafkaRangeOptions, who: str) -> None:
        self._options, self._who = options, who
        self._pinned: dict[str, Pinned] = {}
        self._decoders: dict[str, Decoder] = {}

    def __getstate__(self) -> dict[str, Any]:
        """With the schemas, and without what decodes by them."""
        return {**self.__dict__, "_decoders": {}}

    def decoder(self, column: str) -> Decoder | None:
        """What decodes a column; None: nothing does."""
        form = getattr(self._options, f"{column}_format") if column in COLUMNS else "bytes"
        if form == "bytes":
            return None
        if column not in self._decoders:
            self._decoders[column] = self._made(column, form)
        return self._decoders[column]

    def _made(self, column: str, form: str) -> Decoder:
        if form == "json":
            return JsonText()
        if column not in self._pinned:
            self._pinned[column] = self._options.pin(column, self._who)
        pinned = self._pinned[column]
        if form == "protobuf":
            return Protobuf(pinned, self._who)
        seconds = self._options.request_timeout / 1000
        return Avro(pinned, lambda: kept_registry(self._options, seconds, self._who), self._who)

    def check_versions(self) -> None:
        """Refuse a first start whose columns are not those of the version that the job has noted meanwhile."""
        for column, pinned in self._pinned.items():
            now = self._options.pin(column, self._who)
            if now.version != pinned.version:
                raise refused(
                    f"version {now.version} of the subject '{pinned.subject}' was registered while the query was being "
                    f"started with version {pinned.version}",
                    self._who,
                    f"start again, with {column}_version={now.version} or {column}_version={pinned.version}",
                )
            if now.digest != pinned.digest:
                raise refused(
                    f"version {now.version} of the subject '{pinned.subject}' became another schema while the query "
                    "was being started: the subject was deleted and registered anew",
                    self._who,
                    "start again",
                )
