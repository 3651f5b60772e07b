"""`files` on CSV and JSON as other programs write it: line ends, bytes that are not UTF-8, nulls, quotes, headers."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_ext.errors import DataError
from spark_ext.sources.files import line_ends, lines
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import drive
from tests.sources.files.files_kit import elsewhere, options, read_all, source, steps

DDL = "id int, w string"

ENDS = {
    "cr": b"id,w\r1,a\r2,b\r", "cr, no end": b"id,w\r1,a\r2,b", "cr header": b"id,w\r1,a\n2,b\n",
    "lf header": b"id,w\n1,a\r2,b\r", "mixed": b"id,w\r\n1,a\r2,b\n", "empty lines": b"\n\r\r\nid,w\r\r1,a\n\r\n2,b\r",
}  # fmt: skip


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS.keys())
def test_csv_lines_end_at_cr_too(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x.csv").write_bytes(text)
    wanted = [{"id": 1, "w": "a"}, {"id": 2, "w": "b"}]
    for multiline in ("false", "true"):
        assert read_all(source(tmp_path, DDL, header="true", multiline=multiline)) == wanted
    schema, limits = source(tmp_path, DDL).declared, [{"max_rows_per_epoch": "1"}]
    trace = drive(Files, options(tmp_path, header="true"), schema=schema, limits=limits)
    assert trace.rows("x.csv").to_pylist() == wanted


def test_lines_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    for index, text in enumerate(ENDS.values()):
        (tmp_path / f"{index}.csv").write_bytes(text)
    found = spark.read.schema(DDL).option("header", "true").csv(str(tmp_path)).collect()
    ours = read_all(source(tmp_path, DDL, header="true"))
    assert sorted(map(tuple, found)) == sorted((row["id"], row["w"]) for row in ours)
    text = b'{"id":1}\r{"id":2}\r\nnull\n{"id":3}'
    (tmp_path / "x.json").write_bytes(text)
    theirs = [row.id for row in spark.read.schema(DDL).json(str(tmp_path / "x.json")).collect()]
    assert [row["id"] for row in read_all(source(tmp_path / "x.json", DDL))] == theirs == [1, 2, None, 3]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_row_limits_are_exact_with_cr(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_ends, "SCAN", 7)
    row = {"csv": "{0},w{0}", "json": '{{"id": {0}}}'}[kind]
    ends = ["\r", "\n", "\r\n"]
    (tmp_path / f"x.{kind}").write_bytes("".join(row.format(n) + ends[n % 3] for n in range(20)).encode())
    assert steps(source(tmp_path, DDL), 3) == [list(range(n, min(20, n + 3))) for n in range(0, 20, 3)]


@pytest.mark.parametrize(
    "text", [b'{"id":1}{"id":2}\n', b'{"id":1,\r"w":"x"}\n', b'{"id":0}\n{"id":1}null\n', b'{"id":1,\n"w":"x"}\n']
)
def test_a_json_line_is_one_object(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(DataError, match=r"x\.json.*line"):
        read_all(source(tmp_path, DDL))
    assert len(read_all(source(tmp_path, DDL, multiline="true"))) == 1 + (text.count(b"}") > 1) + (b"null" in text)


@pytest.mark.parametrize("multiline", ["false", "true"])
@pytest.mark.parametrize("bad", [b'{"id":2,"w":"a\xffb"}', b'{"id":2,"w":"\xc3"}', b'{"id":2,"w":"\xed\xa0\x80"}'])
def test_json_that_is_not_utf8_is_refused(tmp_path: Path, bad: bytes, multiline: str) -> None:
    (tmp_path / "x.json").write_bytes(b'{"id":1}\n' + bad + b'\n{"id":3}\n')
    line = "line 2 .*UTF-8" if multiline == "false" else "UTF8"
    with pytest.raises(DataError, match=rf"x\.json.*{line}"):
        read_all(source(tmp_path, DDL, multiline=multiline))
    (tmp_path / "x.json").unlink()
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b'{"id":1}\n' + bad))
    with pytest.raises(DataError, match=r"x\.json\.gz.*UTF-?8"):
        read_all(source(tmp_path, DDL, multiline=multiline))
    (tmp_path / "x.json.gz").unlink()
    (tmp_path / "x.csv").write_bytes(b"1,a\n2,\xff\n")
    with pytest.raises(DataError, match=r"x\.csv.*line 2|x\.csv.*UTF8"):
        read_all(source(tmp_path, DDL, multiline=multiline))


NULLS = """
import sys
from tests.sources.files.files_kit import read_all, source
for name, multiline in (("a.json", "false"), ("a.json", "true"), ("b.json", "true"), ("c.json.gz", "false")):
    rows = read_all(source(sys.argv[1] + "/" + name, "id int", multiline=multiline))
    print(name, [row["id"] for row in rows[:2] + rows[-2:]])
"""


def test_a_null_for_an_object_is_a_row_of_nulls(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbfnull\n{"id":1}\nnull')
    # The null is the first value of the second block.
    (tmp_path / "b.json").write_bytes(b'{"id":1}' + b" " * (8 * 1024 * 1024 - 8) + b'null\n{"id":2}')
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(b'null\n{"id":1}\n'))
    assert elsewhere(NULLS, str(tmp_path)) == [
        "a.json [None, 1, 1, None]", "a.json [None, 1, 1, None]", "b.json [1, None, None, 2]",
        "c.json.gz [None, 1, None, 1]",
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["-NaN", "Inf", "-Inf"])
def test_a_word_that_spark_does_not_take_for_a_number_is_refused(tmp_path: Path, word: str) -> None:
    for multiline, space in (("false", " "), ("true", "\n")):
        (tmp_path / "x.json").write_text(f'{{"n":{space}{word}{space}}}')
        with pytest.raises(DataError, match=f"{word} is not a number"):
            read_all(source(tmp_path, "n double", multiline=multiline))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (b"id,w", []), (b'"id",w', []), (b"\n\r\n", []), (b'"id\nx",id,w\n0,1,a\n', [{"id": 1, "w": "a"}]),
        (b'id,w\n1,"a\rb"\n', [{"id": 1, "w": "a\rb"}]),
    ],
)  # fmt: skip
def test_odd_headers_of_files_with_several_lines_per_row(tmp_path: Path, text: bytes, rows: list[object]) -> None:
    (tmp_path / "x.csv").write_bytes(text)
    assert read_all(source(tmp_path, DDL, header="true", multiline="true")) == rows
    if b'"' not in text or not rows:
        assert read_all(source(tmp_path, DDL, header="true")) == rows
    else:
        with pytest.raises(DataError, match="a quoted value") as refused:
            read_all(source(tmp_path, DDL, header="true"))
        assert "multiline" in str(refused.value)


def test_a_header_whose_quote_is_never_closed_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'"id","w\n' + b"1,a\n" * 50_000)
    for multiline in ("false", "true"):
        with pytest.raises(DataError, match=r"x\.csv"):
            read_all(source(tmp_path, DDL, header="true", multiline=multiline))


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.csv.bz2", "utf16.csv"])
def test_a_quoted_line_end_may_be_cut_anywhere(tmp_path: Path, name: str) -> None:
    """Arrow loses the LF of a CR LF if a piece of the text ends between them."""
    more = {"encoding": "utf-16"} if name == "utf16.csv" else {}
    packs: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress}
    pack = packs.get(name.rpartition(".")[2], bytes)
    for before in range(lines.BLOCK - 3, lines.BLOCK):
        text = '"' + "a" * (before - 1) + '\r\nb"\n"c"\n'
        (tmp_path / name).write_bytes(pack(text.encode(more.get("encoding", "ascii"))))
        words = [row["w"] for row in read_all(source(tmp_path / name, "w string", multiline="true", **more))]
        assert [len(words[0]), words[0][-3:], words[1]] == [before + 2, "\r\nb", "c"]


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "utf16.csv"])
@pytest.mark.parametrize("multiline", ["false", "true"])
@pytest.mark.parametrize("text", [b'1,a\n2,"b\n3,c\n4,d\n', b'1,a\n2,"', b'1,a\n2,"b""'])
def test_a_quote_that_is_never_closed_is_refused(tmp_path: Path, name: str, multiline: str, text: bytes) -> None:
    more = {"encoding": "utf-16"} if name == "utf16.csv" else {}
    data = gzip.compress(text) if name.endswith("gz") else text.decode().encode("utf-16") if more else text
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match="a quoted value"):
        read_all(source(tmp_path, DDL, multiline=multiline, **more))


def test_a_line_of_a_compressed_file_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b'1,"a\n2,b"\n'))
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b'{"id":1}{"id":\n2}\n'))
    for pattern in ("*.csv.gz", "*.json.gz"):
        with pytest.raises(DataError, match="multiline"):
            read_all(source(tmp_path, DDL, pattern=pattern))
    assert read_all(source(tmp_path, "id int", pattern="*.json.gz", multiline="true")) == [{"id": 1}, {"id": 2}]


def test_a_line_end_behind_an_escape_does_not_join_two_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"C:\\\nD:\\\n")
    with pytest.raises(DataError, match="multiline"):
        read_all(source(tmp_path, "w string", escape="\\"))
