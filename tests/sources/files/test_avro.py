"""`files` and Avro: steps of whole blocks, types without Python's limits, damage."""

import io
import json
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from spark_ext.errors import ConfigurationError, DataError, EnvironmentProblem
from spark_ext.sources.contract import Limit
from spark_ext.sources.files import avro_container as container
from spark_ext.sources.files.avro import columns_of, decoding
from spark_ext.sources.files.source import Files
from tests.sources.files.files_kit import (
    DDL,
    fuzzed,
    ids_in,
    opened,
    options,
    read_all,
    read_bad,
    source,
    table,
    write_avro,
)


def logical(kind: str, means: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": means, **more}


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "row", "fields": list(fields)}


def write(path: Path, schema: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    with path.open("wb") as out:
        fastavro.writer(out, schema, rows)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_steps_are_whole_blocks_within_the_limits(tmp_path: Path, codec: str) -> None:
    write_avro(tmp_path / "x.avro", table(0, 200), codec)
    made, channel = opened(tmp_path)
    blocks = [block.num_records for block in fastavro.block_reader((tmp_path / "x.avro").open("rb"))]
    most = max(blocks)
    at = 0
    read: list[int] = []
    while at < channel.data[0]:
        step = made.advance(channel, at, Limit(rows=2 * most))
        assert step.rows is not None and step.rows <= 2 * most and not step.whole
        found = ids_in(made, channel, at, step.end)
        assert len(found) == step.rows
        assert found == ids_in(source(tmp_path), channel, at, step.end)
        at, read = step.end, read + found
    assert step.finished and read == list(range(200))


def test_a_block_larger_than_the_limit_is_a_step_of_its_own(tmp_path: Path) -> None:
    write_avro(tmp_path / "x.avro", table(0, 100), sync_interval=10**6)
    made, channel = opened(tmp_path)
    for limit in (Limit(rows=7), Limit(bytes=10)):
        step = made.advance(channel, 0, limit)
        assert (step.rows, step.whole, step.finished) == (100, True, True)


def test_the_next_block_is_found_by_the_marker_before_it(tmp_path: Path) -> None:
    write_avro(tmp_path / "x.avro", table(0, 200), sync_interval=300)
    with fs.LocalFileSystem().open_input_file(str(tmp_path / "x.avro")) as raw:
        size = raw.size()
        header = container.read_header(raw, size)
        begins = [block.begin for block in container.blocks(raw, header, header.end, size)] + [size]
        for at in range(size):
            wanted = next(begin for begin in begins if begin >= at)
            assert container.next_begin(raw, header, at, size, size) == wanted
            assert container.begins_at(raw, header, at, size) == (at in begins)


def test_parts_begin_at_blocks_even_if_rows_contain_the_marker(tmp_path: Path) -> None:
    marker = bytes(range(16))
    path = tmp_path / "x.avro"
    rows = [{"id": n, "b": (marker if n % 3 else b"y") * 400} for n in range(2000)]
    with path.open("wb") as out:
        fastavro.writer(
            out, record(field("id", "long"), field("b", "bytes")), rows, sync_marker=marker, sync_interval=100_000
        )
    made, channel = opened(path)
    parts = made.split(channel, 0, channel.data[0], 4)
    assert len(parts) == 4
    assert [n for low, high in parts for n in ids_in(made, channel, low, high)] == list(range(2000))


def test_seek_takes_the_beginning_of_a_block(tmp_path: Path) -> None:
    write_avro(tmp_path / "x.avro", table(0, 50))
    made, channel = opened(tmp_path)
    second = made.advance(channel, 0, Limit(rows=1)).end
    assert made.seek(channel, 0, second) == second
    assert made.seek(channel, 0, 0) == 0
    for wrong in (second + 1, 5, -1, True, "a"):
        with pytest.raises(ConfigurationError, match="byte at which a block begins"):
            made.seek(channel, 0, wrong)


def test_types(tmp_path: Path) -> None:
    point = {**record(field("x", "int"), field("y", ["null", "int"])), "name": "point", "namespace": "n"}
    kinds: dict[str, tuple[Any, Any]] = {
        "b": ("boolean", True),
        "d": (logical("int", "date"), date(2020, 1, 2)),
        "ms": (logical("long", "timestamp-millis"), datetime(2020, 1, 2, tzinfo=timezone.utc)),
        "local": (["null", logical("long", "local-timestamp-micros")], datetime(2020, 1, 2, 0, 0, 0, 1)),
        "c": (logical("bytes", "decimal", precision=10, scale=2), Decimal("1.50")),
        "e": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B"),
        "f": ({"type": "fixed", "name": "f", "size": 2}, b"ab"),
        "u": (logical("string", "uuid"), "0" * 8 + "-0000-0000-0000-" + "0" * 12),
        "p": (point, {"x": 1, "y": None}),
        "q": (["null", "n.point"], {"x": 2, "y": 3}),
        "l": ({"type": "array", "items": ["null", "string"]}, ["a", None]),
        "m": ({"type": "map", "values": "n.point"}, {"k": {"x": 4, "y": 5}}),
        "n": (["int", "null", "long"], 2**40),
    }
    row = {name: value for name, (_, value) in kinds.items()}
    write(tmp_path / "x.avro", record(*(field(name, kind) for name, (kind, _) in kinds.items())), [row])
    assert source(tmp_path).schema().simpleString() == (
        "struct<b:boolean,d:date,ms:timestamp,local:timestamp_ntz,c:decimal(10,2),e:string,f:binary,u:string,"
        "p:struct<x:int,y:int>,q:struct<x:int,y:int>,l:array<string>,m:map<string,struct<x:int,y:int>>,n:bigint>"
    )
    assert read_all(source(tmp_path)) == [{**row, "m": [("k", {"x": 4, "y": 5})]}]
    assert read_all(source(tmp_path, "n decimal(20,0), D date")) == [{"n": 2**40, "D": date(2020, 1, 2)}]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (["string", "int"], "'odd' is a union of 2 types"),
        (logical("bytes", "decimal", precision=50, scale=2), "'odd' is a decimal of 50 digits, more than 38"),
        (
            {"type": "record", "name": "tree", "fields": [field("left", ["null", "tree"])]},
            "'odd.left' contains itself: the record tree",
        ),
    ],
)
def test_a_column_of_a_type_that_spark_does_not_have_is_named(tmp_path: Path, kind: Any, words: str) -> None:
    write(tmp_path / "x.avro", record(field("id", "int"), field("odd", kind)), [])
    with pytest.raises(DataError, match=rf"x\.avro.*column 'odd' is not supported: {words}"):
        source(tmp_path)
    with pytest.raises(DataError, match=rf"column 'odd' is not supported: {words}"):
        read_all(source(tmp_path, "odd string"))
    assert read_all(source(tmp_path, "id int")) == []


def test_other_columns_types_and_rows_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.avro", record(field("id", "long")), [{"id": 1}])
    with pytest.raises(DataError, match=r"x\.avro.*no column 'word' \(string\); it has: id"):
        read_all(source(tmp_path, "word string"))
    with pytest.raises(DataError, match="'id' has the type int64 where int32 is declared"):
        read_all(source(tmp_path, "id int"))
    with (tmp_path / "x.avro").open("wb") as out:
        fastavro.writer(out, "long", [1, 2])
    with pytest.raises(DataError, match=r"x\.avro.*rows are not records but of the type 'long'"):
        read_all(source(tmp_path, "id bigint"))


def test_a_codec_without_its_library_is_named(tmp_path: Path) -> None:
    write_avro(tmp_path / "x.avro", table(0, 5), "null")
    data = (tmp_path / "x.avro").read_bytes()
    (tmp_path / "x.avro").write_bytes(data.replace(b"\x08null", b"\x08lzma", 1))
    with pytest.raises(DataError, match=r"x\.avro.*codec 'lzma' is not supported"):
        read_all(source(tmp_path, DDL))


def test_bad_rows_are_collected_with_their_block(tmp_path: Path) -> None:
    schema = record(field("id", "long"), field("t", logical("long", "timestamp-millis")))
    good = datetime(2020, 1, 1, tzinfo=timezone.utc)
    write(tmp_path / "x.avro", schema, [{"id": n, "t": 2**60 if n == 3 else good} for n in range(5)])
    good_rows, (one,) = read_bad(source(tmp_path, on_bad_row="quarantine"))
    assert [row["id"] for row in good_rows] == [0, 1, 2, 4]
    with fs.LocalFileSystem().open_input_file(str(tmp_path / "x.avro")) as raw:
        assert one.position == {"file": "x.avro", "block": container.read_header(raw, raw.size()).end, "row": 3}
    with pytest.raises(DataError, match=r"x\.avro.*'t'"):
        read_all(source(tmp_path))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\2\0\3\0", "an index is -2, and there are 2"),
        (b"\2" + b"\x80" * 10 + b"\1\0\0", "a number has more than 64 bits"),
        (b"\2\0" + b"\2" * 20_000 + b"\0", "maximum recursion depth"),
        (b"\2\0\0\0", "1 bytes are left behind its rows"),
    ],
)
def test_a_damaged_block_has_no_values(tmp_path: Path, body: bytes, words: str) -> None:
    node = {**record(field("next", ["null", "node"])), "name": "node"}
    write(tmp_path / "x.avro", record(field("id", "long"), field("state", "int"), field("list", node)), [])
    head = (tmp_path / "x.avro").read_bytes()
    block = container._as_long(1) + container._as_long(len(body)) + body + head[-16:]
    (tmp_path / "x.avro").write_bytes(head + block)
    with pytest.raises(DataError, match=rf"x\.avro.*block at byte {len(head)} cannot be decoded: .*{words}"):
        read_all(source(tmp_path, "id bigint"))


@pytest.mark.parametrize("codec", ["null", "snappy"])
def test_any_damage_is_an_error_that_names_the_file(tmp_path: Path, codec: str) -> None:
    write_avro(tmp_path / "x.avro", table(0, 100), codec)
    assert fuzzed(tmp_path / "x.avro", DDL, seeds=range(80)) > 40


def test_a_file_that_ends_within_its_last_block_is_refused(tmp_path: Path) -> None:
    write_avro(tmp_path / "x.avro", table(0, 100))
    path = tmp_path / "x.avro"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"x\.avro.*block at byte \d+"):
        read_all(source(tmp_path, DDL))
    made, channel = opened(tmp_path, DDL)
    with pytest.raises(DataError, match=r"x\.avro.*no complete block begins at byte"):
        made.advance(channel, 0, Limit(rows=1000))


@given(st.integers(0, 2**63 - 1))
def test_lengths_are_written_as_they_are_read(number: int) -> None:
    assert container._long(io.BytesIO(container._as_long(number))) == number


def test_logical_types_are_left_to_arrow_but_for_decimals() -> None:
    decimal = logical("bytes", "decimal", precision=4, scale=1)
    schema = record({**field("d", ["null", logical("int", "date")]), "default": None}, field("c", decimal))
    assert decoding(schema)["fields"] == [field("d", ["null", {"type": "int"}]), field("c", decimal)]
    assert columns_of(schema).schema.types == [pa.date32(), pa.decimal128(4, 1)]


def test_hostile_schemas_have_no_columns() -> None:
    kind: Any = "int"
    for level in range(9):
        fields = [field(f"f{number}", f"R{level - 1}" if number and level else kind) for number in range(10)]
        kind = {**record(*fields), "name": f"R{level}"}
    deep: Any = "int"
    for _ in range(2000):
        deep = {"type": "array", "items": deep}
    found = columns_of(record(field("id", "int"), field("wide", kind), field("deep", deep)))
    assert found.schema.names == ["id"]
    assert found.others["wide"] == "it has more than 10000 parts"
    assert "more than 100 types within one another" in found.others["deep"]


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(EnvironmentProblem, match="fastavro") as refused:
        Files(options(tmp_path, format="avro")).open()
    assert "spark-ext[avro]" in refused.value.do


@pytest.mark.parametrize(
    ("kind", "patch", "values", "shown", "words"),
    [
        (
            logical("bytes", "decimal", precision=9, scale=2),
            (b'"precision": 9', b'"precision": 4'),
            [Decimal(cents).scaleb(-2) for cents in (1, 12345, -9999, 10_000, 0)],
            ["123.45", "100.00"],
            "precision 5",
        ),
        (
            "string",
            (b"M.hre", b"M\xf6hre"),
            ["a", "M.hre", "\u00e9", "xM.hre", ""],
            ["M\udcf6hre", "xM\udcf6hre"],
            "not UTF-8",
        ),
        (
            {"type": "array", "items": {"type": "map", "values": "string"}},
            (b"M.hre", b"M\xf6hre"),
            [[], [{}, {"M.hre": "x"}], [{"a": "b"}], [{"a": "M.hre"}], []],
            [[[], [["M\udcf6hre", "x"]]], [[["a", "M\udcf6hre"]]]],
            "not UTF-8",
        ),
    ],
)
def test_a_value_that_its_type_does_not_have_is_a_bad_row(
    tmp_path: Path, kind: Any, patch: tuple[bytes, bytes], values: list[Any], shown: list[Any], words: str
) -> None:
    """Writers do not check it; the other rows of its block are read."""
    path = tmp_path / "x.avro"
    write(path, record(field("n", "int"), field("v", kind)), [{"n": n, "v": v} for n, v in enumerate(values)])
    path.write_bytes(path.read_bytes().replace(*patch))
    with pytest.raises(DataError, match=words):
        read_all(source(tmp_path))
    good, bad = read_bad(source(tmp_path, on_bad_row="quarantine"))
    assert [row["n"] for row in good] == [0, 2, 4]
    found = [(row.position["row"], json.loads(str(row.raw))) for row in bad]
    assert found == [(n, {"n": n, "v": v}) for n, v in zip((1, 3), shown, strict=True)]
