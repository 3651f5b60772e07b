"""`files` with `on_bad_row=quarantine`: lines that do not parse or fit, each with its file and byte."""

import bz2
import gzip
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given

from spark_ext.errors import DataError
from spark_ext.sources.contract import BadRow, Channel, Limit
from spark_ext.sources.files import lines
from tests.sources.files.files_kit import opened


def read(
    folder: Path, ddl: str, ranges: list[tuple[int, int]] | None = None, **options: Any
) -> tuple[list[dict[str, Any]], list[BadRow]]:
    made, channel = opened(folder, ddl, on_bad_row="quarantine", **options)
    bad: list[BadRow] = []
    made._collect = bad.append
    reads = Channel(channel.id, None, channel.data)
    batches = [batch for low, high in ranges or [(0, channel.data[0])] for batch in made.read(reads, low, high)]
    return [row for batch in batches for row in batch.to_pylist()], bad


def raw_of(row: BadRow) -> bytes:
    assert isinstance(row.raw, bytes) and row.raw
    return row.raw


CSV = ["1,a", "x,b", "3", "4,d", '5,"e', "6,f", "7,g,h", "", "8,\xe9"]
JSON = [
    '{"n":1}', '{"n":"x"}', '{"n":2}{"n":3}', "null", '{"n":', "4}", '{"n":5,"s":7}', '{"n":99999999999}', '{"n":6}',
]  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv(tmp_path: Path, end: str) -> None:
    content = end.join(CSV).encode("latin-1")
    (tmp_path / "a.csv").write_bytes(content)
    good, bad = read(tmp_path, "n int, s string")
    assert good == [{"n": 1, "s": "a"}, {"n": 4, "s": "d"}, {"n": 6, "s": "f"}]
    assert [row.raw for row in bad] == [b"x,b", b"3", b'5,"e', b"7,g,h", b"8,\xe9"]
    for row in bad:
        at = row.position["byte"]
        assert row.position["file"] == "a.csv" and content[at:].startswith(raw_of(row))
        assert row.reason and "Row #" not in row.reason


def test_json(tmp_path: Path) -> None:
    content = "\n".join(JSON).encode()
    (tmp_path / "a.json").write_bytes(content)
    good, bad = read(tmp_path, "n int, s string")
    assert [row["n"] for row in good] == [1, None, 6]
    assert [row.raw for row in bad] == [JSON[number].encode() for number in (1, 2, 4, 5, 6, 7)]
    assert [content[row.position["byte"] :].startswith(raw_of(row)) for row in bad] == [True] * 6


def test_a_header_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,s\n1,a\nx,b\n")
    good, bad = read(tmp_path, "n int, s string", header="true")
    assert good == [{"n": 1, "s": "a"}] and [row.position["byte"] for row in bad] == [8]


def check_in_pieces(
    file: Path, content: list[str], cuts: set[int], block: int, numbers: Mapping[str, int | None]
) -> None:
    """Of lines that are read in ranges and blocks, those with a number are good, and others but empty ones are bad."""
    file.write_text("".join(f"{line}\n" for line in content))
    starts = [sum(len(line) + 1 for line in content[:number]) for number in range(len(content) + 1)]
    bounds = sorted({0, starts[-1], *(starts[cut] for cut in cuts if cut < len(starts))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", block)
        patch.setattr(lines, "SIFTED", 1 + block // 3)
        good, bad = read(file.parent, "n int", list(pairwise(bounds)))
    assert [row["n"] for row in good] == [numbers[line] for line in content if line in numbers]
    wrong = [starts[number] for number, line in enumerate(content) if line and line not in numbers]
    assert [row.position["byte"] for row in bad] == wrong


objects = st.lists(
    st.sampled_from(['{"n":1}', ' {"n":2} ', '{"n":3}{"n":4}', '{"n":', "5}", '{"m":{"n":6}', "}", "null", "", "x"]),
    min_size=1,
    max_size=30,
)


@given(objects, st.sets(st.integers(1, 29), max_size=4), st.integers(1, 60))
@example(['{"n":3}{"n":4}', ""], set(), 16)
def test_a_line_of_json_is_one_object_whatever_is_beside_it(
    tmp_path_factory: pytest.TempPathFactory, content: list[str], cuts: set[int], block: int
) -> None:
    numbers = {'{"n":1}': 1, ' {"n":2} ': 2, "null": None}
    check_in_pieces(tmp_path_factory.mktemp("f") / "a.json", content, cuts, block, numbers)


lines_of = st.lists(st.sampled_from(["1", "22", "x", '"', "", "333,4", '"5"']), min_size=1, max_size=40)


@given(lines_of, st.sets(st.integers(1, 39), max_size=4), st.integers(1, 60))
def test_good_and_bad_are_all_lines_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, content: list[str], cuts: set[int], block: int
) -> None:
    numbers = {"1": 1, "22": 22, '"5"': 5}
    check_in_pieces(tmp_path_factory.mktemp("f") / "a.csv", content, cuts, block, numbers)


def test_parquet_values_that_the_declared_type_does_not_have(tmp_path: Path) -> None:
    nanoseconds = pa.array([1_000, 1_001, None, 3_000, 4_500], pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"at": nanoseconds, "n": range(5)}), tmp_path / "a.parquet", row_group_size=3)
    good, bad = read(tmp_path, "at timestamp, n bigint", [(0, 5)])
    assert [row["n"] for row in good] == [0, 2, 3]
    assert [row.position for row in bad] == [{"file": "a.parquet", "row": 1}, {"file": "a.parquet", "row": 4}]
    assert "'at'" in bad[0].reason


@pytest.mark.parametrize("block", [1, 3, 7, 8 * 1024 * 1024])
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_compressed_file_is_read_by_its_lines(
    tmp_path: Path, kind: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are those of the text. A limit of rows counts them while planning, which passes over bad ones too."""
    monkeypatch.setattr(lines, "BLOCK", block)
    head, text = ("\ufeffn,s\r\n", "\r\n".join(CSV[:-1])) if kind == "csv" else ("\ufeff", "\n".join(JSON))
    content = (head + text).encode()
    (tmp_path / f"a.{kind}.bz2").write_bytes(bz2.compress(content))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / f"a.{kind}").write_bytes(content)
    header: dict[str, Any] = {"header": "true"} if kind == "csv" else {}
    good, bad = read(tmp_path, "n int, s string", recursive="false", **header)
    plain = read(tmp_path / "plain", "n int, s string", **header)
    assert good == plain[0] and [row.raw for row in bad] == [row.raw for row in plain[1]] and len(bad) >= 4
    assert [row.position["byte"] for row in bad] == [row.position["byte"] for row in plain[1]]
    made, channel = opened(tmp_path, "n int, s string", on_bad_row="quarantine", recursive="false", **header)
    step = made.advance(channel, 0, Limit(rows=2))
    assert step.rows == len(good) and step.finished


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize(
    ("encoding", "wrong"),
    [
        ("utf-8", b"\xff"), ("cp1252", b"\x81"), ("shift_jis", b"\xfc\xfc"), ("utf-16-le", b"\0\xd8"),
        ("utf-32-le", b"\xff" * 4),
    ],
)  # fmt: skip
def test_a_byte_that_the_encoding_does_not_have_makes_a_bad_row(
    tmp_path: Path, kind: str, ending: str, encoding: str, wrong: bytes
) -> None:
    rows = (
        ["1,a", "2,@", "3,@", "4,b"] if kind == "csv" else [f'{{"n":{n},"s":"{s}"}}' for n, s in enumerate("a@@b", 1)]
    )
    content = b"".join(f"{row}\n".encode(encoding) for row in rows).replace("@".encode(encoding), wrong)
    (tmp_path / f"a.{kind}{ending}").write_bytes(gzip.compress(content) if ending else content)
    good, bad = read(tmp_path, "n int, s string", encoding=encoding)
    assert good == [{"n": 1, "s": "a"}, {"n": 4, "s": "b"}] and len(bad) == 2
    assert all("valid" in row.reason for row in bad)
    with pytest.raises(DataError):
        read(tmp_path, "n int, s string", encoding=encoding, multiline="true")


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.csv", b"a,b\n1,2\n", {"header": "true"}), ("a.csv.bz2", bz2.compress(b"1\nx\n")[:-5], {}),
        ("a.parquet", b"PAR1 and nothing more", {}), ("a.json", b'{"n":1}\n{"n":"x"}\n', {"multiline": "true"}),
        ("n=x/a.csv", b"1\n2\n", {}),
    ],
    ids=["header", "damaged archive", "footer", "one step", "folder"],
)  # fmt: skip
def test_a_file_as_a_whole_is_refused(tmp_path: Path, name: str, content: bytes, options: dict[str, Any]) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError):
        read(tmp_path, "n int, s string" if "=" in name else "n int", **options)
