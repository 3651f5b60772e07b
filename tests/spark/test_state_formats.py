"""The files of state stores that a client of Spark Connect reads; `test_state_files.py` has Spark's own."""

import json
import struct
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from spark_ext.errors import StateError
from spark_ext.spark.backend.state import StateVersion
from spark_ext.spark.backend.state_formats import LocalStateFiles

LINEAGE = [{"version": number, "checkpointUniqueId": f"id-{number}"} for number in range(1, 40)]
FOUND = tuple(StateVersion(number, f"id-{number}") for number in range(1, 40))


def changelog(form: str = "v3") -> bytes:
    texts = [form.encode(), json.dumps(LINEAGE).encode()]
    return b"".join(len(text).to_bytes(2, "big") + text for text in texts) + b"records" * 9_999


def blocks(content: bytes, size: int) -> bytes:
    """As lz4-java writes it: a block that does not become smaller is stored, and an empty one ends the stream."""
    out = b""
    for at in range(0, len(content), size):
        block = content[at : at + size]
        packed = pa.compress(block, "lz4_raw", asbytes=True)
        method, body = (0x20, packed) if len(packed) < len(block) else (0x10, block)
        out += struct.pack("<8sBIII", b"LZ4Block", method | 5, len(body), len(block), 0) + body
    return out + struct.pack("<8sBIII", b"LZ4Block", 0x15, 0, 0, 0)


@pytest.mark.parametrize("size", [7, 500, 65_536])
def test_a_lineage_may_span_blocks_of_lz4(size: int, tmp_path: Path) -> None:
    (tmp_path / "40_x.changelog").write_bytes(blocks(changelog(), size))
    assert LocalStateFiles("lz4").lineage(str(tmp_path), StateVersion(40, "x")) == FOUND


def test_a_lineage_compressed_with_zstd(tmp_path: Path) -> None:
    with pa.CompressedOutputStream(str(tmp_path / "40_x.changelog"), "zstd") as out:
        out.write(changelog("v4"))
    assert LocalStateFiles("ZStd").lineage(f"file:{tmp_path}", StateVersion(40, "x")) == FOUND


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"compression\.codec is snappy, which only a JVM can read"):
        LocalStateFiles("snappy")
    (tmp_path / "2_x.changelog").write_bytes(blocks(changelog("v2"), 500))
    with pytest.raises(StateError, match="has the unknown format 'v2'"):
        LocalStateFiles("lz4").lineage(str(tmp_path), StateVersion(2, "x"))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_cut_changelog_is_named(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "40_x.changelog"
    whole = blocks(changelog(), 500) if codec == "lz4" else pa.compress(changelog(), "zstd", asbytes=True)
    wrong = []
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        try:
            found = LocalStateFiles(codec).lineage(str(tmp_path), StateVersion(40, "x"))
        except StateError as problem:
            assert str(path) in str(problem)
        else:
            wrong += [size] if found != FOUND else []
    assert not wrong


def test_a_cut_snapshot_is_named(tmp_path: Path) -> None:
    path = tmp_path / "1_x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata", 'v1\n{"sstFiles": [{"dfsSstFileName": "a.sst"}], "logFiles": []}')
    whole = path.read_bytes()
    at = whole.index(b"metadata") + len("metadata")
    damaged = whole[:at] + bytes(10) + whole[at + 10 :]
    for content in (*(whole[:size] for size in range(len(whole))), damaged):
        path.write_bytes(content)
        with pytest.raises(StateError, match=f"the snapshot {path} is damaged"):
            LocalStateFiles("lz4").referred(str(tmp_path), StateVersion(1, "x"))
    with pytest.raises(FileNotFoundError):
        LocalStateFiles("lz4").referred(str(tmp_path), StateVersion(2, "x"))


def test_a_snapshot_of_an_unknown_format_refers_to_nothing(tmp_path: Path) -> None:
    for form in ("v1", "v3"):
        with zipfile.ZipFile(tmp_path / f"{form[1]}_x.zip", "w") as archive:
            archive.writestr("metadata", f'{form}\n{{"sstFiles": [{{"dfsSstFileName": "a.sst"}}], "logFiles": []}}')
    files = LocalStateFiles("lz4")
    assert files.referred(str(tmp_path), StateVersion(1, "x")) == ("SSTs/a.sst",)
    with pytest.raises(StateError, match="has the unknown format 'v3'"):
        files.referred(str(tmp_path), StateVersion(3, "x"))
