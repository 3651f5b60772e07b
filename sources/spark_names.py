"""What stands here for an option that Spark's own sources have: the name of an option, or what to do instead.

The names are in lower case. An option that has the same name and values in both is not among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EVERY_SOURCE: Final[Mapping[str, str]] = {
    "maxbytespertrigger": "max_bytes_per_epoch",
    "maxfilespertrigger": "limit an epoch with max_rows_per_epoch or max_bytes_per_epoch, or set 'readers' to the "
    "number of files that are read at once",
    "maxoffsetspertrigger": "max_rows_per_epoch",
    "mode": "set on_bad_row: 'fail' stops at a bad row as FAILFAST does, and 'quarantine' puts it into a table of its "
    "own; no row is dropped, and none has nulls for values that do not fit",
}
"""Of every source."""

_TYPES: Final = "declare the columns with .schema(...)"
_BY_QUERY: Final = "declare the column as string, and convert it in the query"
_NOTHING: Final = "remove the option: this source has no counterpart, and its page says how it reads"
_WITHOUT_COUNTERPART: Final = frozenset(
    {"allowbackslashescapinganycharacter", "allowcomments", "allownonnumericnumbers",
    "allownumericleadingzeros", "allowsinglequotes", "allowunquotedcontrolchars", "allowunquotedfieldnames",
    "chartoescapequoteescaping", "columnpruning", "enabledatetimeparsingfallback", "escapequotes",
    "extension", "filenameonly", "ignorenullfields", "inputbuffersize", "maxcachedfiles",
    "maxcharspercolumn", "maxcolumns", "maxfileage", "maxnestingdepth", "maxnumlen", "maxstringlen",
    "orc.compress", "parquet.compression", "pretty", "quoteall", "sortkeys", "unescapedquotehandling",
    "useunsafeparser", "useunsaferow", "writenonasciicharacterascodepoint"}
)  # fmt: skip

FILES: Final[Mapping[str, str]] = {
    **EVERY_SOURCE,
    **dict.fromkeys(_WITHOUT_COUNTERPART, _NOTHING),
    "avroschema": _TYPES,
    "badrecordspath": "bad_rows_path",
    "basepath": "remove the option: the folders 'key=value' below 'path' are columns",
    "charset": "encoding",
    "cleansource": "remove the option: files are left as they are, and one that has been read is not opened again",
    "codec": "remove the option: the compression is known by the name, such as x.csv.gz",
    "columnnameofcorruptrecord": "set on_bad_row=quarantine, which puts bad rows into a table of their own",
    "compression": "remove the option: the compression is known by the name, such as x.csv.gz",
    "dateformat": "declare the column as string, and convert it in the query: to_date(column, 'dd.MM.yyyy'); dates "
    "are read as ISO 8601",
    "datetimerebasemode": "remove the option: calendars are known by the footers of the files",
    "delimiter": "sep",
    "dropfieldifallnull": _TYPES,
    "emptyvalue": "remove the option: a value in quotes is empty text, and one without is null",
    "enforceschema": "set header=true: columns are then compared with the header by name",
    "filenamepattern": "pattern",
    "ignorecorruptfiles": "set on_bad_file=quarantine: damaged files become bad rows, and are never passed over",
    "ignoreextension": "format",
    "ignoreleadingwhitespace": "remove the option, and trim values in the query; header=normalize trims names",
    "ignoremissingfiles": "remove the option: a file that is gone before it was read is refused by name",
    "ignoretrailingwhitespace": "remove the option, and trim values in the query; header=normalize trims names",
    "inferschema": "set infer=true and schema_location, or declare the columns with .schema(...)",
    "infertimestamp": _TYPES,
    "int96rebasemode": "remove the option: calendars are known by the footers of the files",
    "latestfirst": "set order=modified, which starts with the oldest file; the newest cannot be first",
    "linesep": "remove the option: a line ends with LF, CR LF or CR",
    "locale": _BY_QUERY,
    "mergeschema": _TYPES,
    "modifiedafter": "select the files with the options 'path' and 'pattern'",
    "modifiedbefore": "select the files with the options 'path' and 'pattern'",
    "nanvalue": _BY_QUERY,
    "negativeinf": _BY_QUERY,
    "nullvalue": "null_value",
    "pathglobfilter": "pattern",
    "positionalfieldmatching": _TYPES,
    "positiveinf": _BY_QUERY,
    "preferdate": _TYPES,
    "prefersdate": _TYPES,
    "prefersdecimal": _TYPES,
    "primitivesasstring": _TYPES,
    "recursivefilelookup": "recursive",
    "rescueddatacolumn": "set on_bad_row=quarantine, which puts bad rows into a table of their own",
    "samplingratio": _TYPES,
    "singlevariantcolumn": _TYPES,
    "skiprows": "skip_rows",
    "sourcearchivedir": "remove the option: files are left as they are, and one that has been read is not opened again",
    "timeformat": _BY_QUERY,
    "timestampformat": "set timestamp_format to a pattern of strptime, such as '%d.%m.%Y %H:%M', instead of Java's",
    "timestampntzformat": "set timestamp_format to a pattern of strptime, such as '%d.%m.%Y %H:%M', instead of Java's",
    "timezone": "remove the option: times without a zone are UTC; convert them in the query with to_utc_timestamp",
}
"""Of Spark's and Databricks' sources of files."""

_CLIENT: Final = "set the option client_options, a JSON object of the clients' settings under librdkafka's names"

KAFKA: Final[Mapping[str, str]] = {
    **EVERY_SOURCE,
    "assign": "topics",
    "endingoffsets": "ending",
    "endingoffsetsbytimestamp": "ending_timestamp",
    "endingtimestamp": "ending_timestamp",
    "failondataloss": "lost_records",
    "groupidprefix": "group",
    "includeheaders": "headers",
    "kafka.bootstrap.servers": "bootstrap_servers",
    "kafka.group.id": "group",
    "kafka.sasl.jaas.config": _CLIENT,
    "kafka.sasl.mechanism": _CLIENT,
    "kafka.security.protocol": _CLIENT,
    "kafka.ssl.truststore.location": _CLIENT,
    "minpartitions": "min_partitions",
    "startingoffsets": "starting",
    "startingoffsetsbytimestamp": "starting_timestamp",
    "startingoffsetsbytimestampstrategy": "starting_timestamp_unmatched",
    "startingtimestamp": "starting_timestamp",
    "subscribe": "topics",
    "subscribepattern": "pattern",
}
"""Of Spark's Kafka source; other settings of its clients, `kafka.x`, are in `client_options`."""

DELTA: Final[Mapping[str, str]] = {
    **EVERY_SOURCE,
    "ignorechanges": "on_change",
    "ignoredeletes": "on_change",
    "readchangedata": "changes",
    "readchangefeed": "changes",
    "skipchangecommits": "on_change",
    "startingtimestamp": "starting_timestamp",
    "startingversion": "starting_version",
    "timestampasof": "timestamp",
    "versionasof": "version",
}
"""Of Delta's source."""

JDBC: Final[Mapping[str, str]] = {
    **EVERY_SOURCE,
    "dbtable": "table",
    "driver": "remove the option: the source has a driver of its own",
    "fetchsize": _NOTHING,
    "lowerbound": "remove the option: the source divides the keys into ranges by itself; see 'rows_per_channel'",
    "numpartitions": "rows_per_channel",
    "partitioncolumn": "key",
    "querytimeout": "statement_timeout",
    "upperbound": "remove the option: the source divides the keys into ranges by itself; see 'rows_per_channel'",
    "url": "set dsn, such as 'postgresql://host:5432/database', or host, port and dbname",
}
"""Of Spark's source of databases."""

RATE: Final[Mapping[str, str]] = {**EVERY_SOURCE, "numpartitions": "channels", "rowspersecond": "rows_per_second"}
"""Of Spark's source of generated rows."""
