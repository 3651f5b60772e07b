"""The files of RocksDB state stores, read without a JVM.

A changelog is compressed, and begins with the format of its records and its lineage, each a string of Java's
`writeUTF`. A snapshot is a zip archive, whose `metadata` is JSON behind a line with its version.

`tests/spark/test_state_files.py` compares both with what Spark's own classes read.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_ext.errors import StateError
from spark_ext.spark.backend.state import StateVersion
from spark_ext.storage import local_path

_LZ4: Final = struct.Struct("<8sBIII")  # magic, method, compressed size, size, checksum
_STORED: Final = 0x10  # a method, beside the level of compression
_WITH_LINEAGE: Final = ("v3", "v4")
_METADATA: Final = (b"v1", b"v2")  # of snapshots; in Spark 4.0 the number is that of the checkpoint format
_CODEC: Final = "spark.sql.streaming.stateStore.compression.codec"


class LocalStateFiles:
    """See `StateFiles`; its folders are those of a file system that this process reaches."""

    def __init__(self, codec: str) -> None:
        name = codec.lower()  # as Spark reads it
        if name not in ("lz4", "zstd"):
            raise StateError(
                f"{_CODEC} is {codec}, which only a JVM can read",
                operator="the state of a query, over Spark Connect",
                kept="all committed epochs",
                do=f"set {_CODEC} to lz4 or zstd, and start with a new state directory",
            )
        self._codec = name

    def lineage(self, folder: str, version: StateVersion) -> tuple[StateVersion, ...]:
        """See `StateFiles`."""
        path = _place(folder) / version.changelog
        compressed = path.read_bytes()
        with _readable(f"the changelog {path}"):
            content = io.BytesIO(self._decompressed(compressed))
            found = _text(content)
            if found not in _WITH_LINEAGE:
                raise _unknown(f"the changelog {path}", found)
            items = json.loads(_text(content))
            return tuple(StateVersion(int(one["version"]), one["checkpointUniqueId"]) for one in items)

    def referred(self, folder: str, version: StateVersion) -> tuple[str, ...]:
        """See `StateFiles`."""
        path = _place(folder) / version.snapshot
        with path.open("rb") as file, _readable(f"the snapshot {path}"), zipfile.ZipFile(file) as archive:
            form, _, text = archive.read("metadata").partition(b"\n")
            if form not in _METADATA:
                raise _unknown(f"the snapshot {path}", form.decode(errors="replace"))
            metadata = json.loads(text)
            tables = (f"SSTs/{one['dfsSstFileName']}" for one in metadata.get("sstFiles", ()))
            logs = (f"logs/{one['dfsLogFileName']}" for one in metadata.get("logFiles", ()))
            return tuple(sorted((*tables, *logs)))

    def _decompressed(self, content: bytes) -> bytes:
        if self._codec == "zstd":
            return bytes(pa.CompressedInputStream(pa.BufferReader(content), "zstd").read())
        return b"".join(_blocks(content))


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Name a file whose content is not whole."""
    try:
        yield
    except StateError:
        raise
    except Exception as problem:  # each reader raises its own
        raise StateError(
            f"{what} is damaged: {str(problem) or type(problem).__name__}",
            operator="the state of a query",
            kept="all committed epochs",
            do="restore a savepoint, or start with a new state directory",
        ) from problem


def _unknown(what: str, found: str) -> StateError:
    return StateError(
        f"{what} has the unknown format '{found[:20]}'",
        operator="the state of a query",
        kept="all committed epochs",
        do="use the Spark version for which this release of spark-ext was made",
    )


def _blocks(content: bytes) -> Iterator[bytes]:
    """The blocks of lz4-java's stream, decompressed."""
    codec, at = pa.Codec("lz4_raw"), 0
    while at < len(content):
        _, method, compressed, size, _ = _LZ4.unpack_from(content, at)
        at += _LZ4.size
        block, at = content[at : at + compressed], at + compressed
        yield block if method & 0xF0 == _STORED or not size else codec.decompress(block, size, asbytes=True)


def _text(content: io.BytesIO) -> str:
    length = int.from_bytes(content.read(2), "big")
    text = content.read(length)
    if len(text) < length:
        raise EOFError(f"{length - len(text)} bytes of its lineage are missing")
    return text.decode()


def _place(folder: str) -> Path:
    found = local_path(folder)
    assert found is not None  # over Spark Connect a state directory in a store is refused
    return found
