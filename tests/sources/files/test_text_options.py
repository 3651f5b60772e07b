"""`files`: encodings of text, and comments in CSV."""

import bz2
import codecs
import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Channel, Limit
from spark_ext.sources.files import encodings
from spark_ext.sources.files.encodings import Encoding
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import drive
from tests.sources.files.files_kit import opened, options, read_all, source

WORDS = ["Grüße", "naïve", "Œuvre €", "plain"]


@pytest.mark.parametrize("name", sorted(encodings._BY_LINE))
def test_no_other_character_has_the_byte_of_a_line_end(name: str) -> None:
    """Else a line would be cut within a character."""
    others = "".join(character for character in map(chr, range(0x10000)) if character not in "\r\n")
    assert not set(others.encode(name, "ignore")) & {0x0A, 0x0D}
    assert "\r\n".encode(name) == b"\r\n"


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("name", ["utf-8", "cp1252", "utf-16", "UTF-16LE", "utf-32-be", "latin9"])
def test_text_is_read_in_its_encoding(tmp_path: Path, kind: str, name: str) -> None:
    lines = [f"{n},{word}" if kind == "csv" else f'{{"id":{n},"word":"{word}"}}' for n, word in enumerate(WORDS)]
    (tmp_path / f"x.{kind}").write_bytes("\r\n".join(lines).encode(name))
    assert [row["word"] for row in read_all(source(tmp_path, "id int, word string", encoding=name))] == WORDS


@pytest.mark.parametrize("name", ["cp1252", "utf-16"])
@pytest.mark.parametrize("more", [{}, {"multiline": "true"}, {"on_bad_row": "quarantine"}])
def test_a_header_is_read_in_the_encoding(tmp_path: Path, name: str, more: dict[str, str]) -> None:
    text = "Größe;id\nklein;1\ngroß;2\n"
    (tmp_path / "x.csv").write_bytes(text.encode(name))
    (tmp_path / "y.csv.gz").write_bytes(gzip.compress(text.encode(name)))
    rows = read_all(source(tmp_path, "id int, `Größe` string", encoding=name, header="true", sep=";", **more))
    assert rows == [{"id": 1, "Größe": "klein"}, {"id": 2, "Größe": "groß"}] * 2


@given(
    words=st.lists(st.text(st.sampled_from("aäöüß€# 表ソ十"), max_size=9), max_size=40),
    name=st.sampled_from(["cp1252", "shift_jis", "utf-16", "gb18030"]),
    seed=st.integers(0, 2**32),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
@settings(max_examples=25, deadline=None)
def test_each_line_once_under_random_limits_and_crashes(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], name: str, seed: int, end: str
) -> None:
    root = tmp_path_factory.mktemp("in")
    pick = random.Random(seed)
    lines: list[str] = []
    wanted = []
    for number, word in enumerate(words):
        text = word.encode(name, "ignore").decode(name)
        if pick.random() < 0.4:
            lines.append(f"# {text}, not a row")
        lines.append(f"{number},x{text}")
        wanted.append({"id": number, "word": f"x{text}"})
    (root / "x.csv").write_bytes(end.join(lines).encode(name))
    given = options(root, encoding=name, comment="#")
    trace = drive(Files, given, schema=columns("id int, word string"), rng=random.Random(seed))
    assert trace.ended
    assert (trace.rows("x.csv").to_pylist() if wanted else []) == wanted


def test_a_split_file_has_each_line_once(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("".join(f"{n},schön {'ü' * 90}\n" for n in range(30_000)).encode("latin-1"))
    made, channel = opened(tmp_path, "id int, word string", encoding="latin-1")
    parts = made.split(channel, 0, made.advance(channel, 0, Limit()).end, 3)
    assert len(parts) == 2
    read = [n for low, high in parts for batch in made.read(channel, low, high) for n in batch["id"].to_pylist()]
    assert read == list(range(30_000))


@pytest.mark.parametrize(
    ("data", "name", "match"),
    [
        ("1,a\n".encode("utf-16"), "latin-1", "mark of utf-16"),
        ("1,a\n".encode("utf-8-sig"), "cp1252", "mark of utf-8"),
        ("1,a\n".encode("utf-32"), "utf-16", "mark of utf-32"),
        (codecs.BOM_UTF16_BE + "1,a\n".encode("utf-16-be"), "utf-16-le", "mark of utf-16-be"),
        ("1,a\n".encode("utf-16-be"), "utf-16", "no byte order mark: set the option 'encoding' to utf-16-le or"),
        (b"1,a\n2,\x81\n", "cp1252", r"line 2 \(byte 4\).*not valid cp1252"),
        ("1,a\n".encode("utf-16") + b"\x00\xd8", "utf-16", r"x\.csv"),
        (b"1,\xff\n", "utf-8", "UTF8|UTF-8"),
    ],
)
def test_text_that_is_not_in_the_encoding_is_refused(tmp_path: Path, data: bytes, name: str, match: str) -> None:
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(DataError, match=match):
        read_all(source(tmp_path, "id int, word string", encoding=name))


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"watch": "true", "group": "directory"}, "exclude each other"), ({"heder": "true"}, "did you mean 'header'"),
        ({"format": "xlsx"}, "format"), ({"encoding": "utf-9"}, "'utf-9' is not an encoding that is supported"),
        ({"encoding": "cp037"}, "is not an encoding that is supported"),
        ({"encoding": "rot13"}, "is not an encoding that is supported"),
        ({"encoding": "latin-1", "format": "parquet"}, "encoding is for text: parquet"),
        ({"encoding": "utf-16", "format": "avro"}, "encoding is for text: avro"), ({"comment": "##"}, "comment"),
        ({"comment": "§"}, "character of ASCII"), ({"comment": ","}, "another character than sep"),
        ({"comment": '"'}, "another character than sep"), ({"comment": "#", "format": "json"}, "comment is for CSV"),
        ({"comment": "#", "multiline": "true"}, "exclude each other"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(tmp_path: Path, more: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Files(options(tmp_path, **more))


def test_an_encoding_is_refused_for_a_file_that_has_none(tmp_path: Path) -> None:
    (tmp_path / "x.orc").write_bytes(b"ORC")
    with pytest.raises(ConfigurationError, match=r"'encoding' is for text, and file 'x\.orc' is orc"):
        read_all(source(tmp_path, "id int", encoding="latin-1"))


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.bz2"])
@pytest.mark.parametrize("header", [False, True])
def test_comments_are_not_rows(tmp_path: Path, ending: str, header: bool) -> None:
    text = "\n# first, of all\n#\n" + ("id,word\n" if header else "") + '1,"#a"\n#2,b\n\n3,c#\n#end'
    pack: dict[str, Callable[[bytes], bytes]] = {"csv": bytes, "csv.gz": gzip.compress, "csv.bz2": bz2.compress}
    (tmp_path / f"x.{ending}").write_bytes(pack[ending](text.encode()))
    rows = read_all(source(tmp_path, "id int, word string", comment="#", header=str(header)))
    assert rows == [{"id": 1, "word": "#a"}, {"id": 3, "word": "c#"}]


@pytest.mark.parametrize("begin", ["# a comment\n\n# another\n", "\n\n"])
@pytest.mark.parametrize("limit", ["max_bytes_per_epoch", "max_rows_per_epoch"])
def test_a_header_is_no_row_of_an_epoch_that_ends_before_it(tmp_path: Path, begin: str, limit: str) -> None:
    (tmp_path / "x.csv").write_text(begin + "id,word\n1,a\n2,b\n")
    given = options(tmp_path, header="true", comment="#")
    trace = drive(Files, given, schema=columns("id string, word string"), limits=[{limit: "1"}])
    assert trace.rows("x.csv").to_pylist() == [{"id": "1", "word": "a"}, {"id": "2", "word": "b"}]


def test_lines_of_comments_are_counted_and_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("# a\n1\n# b\n# c\nx\n2\n")
    with pytest.raises(DataError, match=r"line 5 \(byte 14\)"):
        read_all(source(tmp_path, "id int", comment="#"))
    (tmp_path / "x.csv").write_text("# a\n# b")
    for header in ("true", "false"):
        assert read_all(source(tmp_path, "id int", comment="#", header=header)) == []


@pytest.mark.parametrize("change", [{"encoding": "utf-16-le"}, {"multiline": "true"}])
def test_a_half_read_file_that_would_be_one_step_now_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    (tmp_path / "x.csv").write_text("1\n2\n3\n4\n")
    (channel,) = source(tmp_path, "id int").discover()
    step = source(tmp_path, "id int").advance(channel, 0, Limit(rows=2))
    changed = source(tmp_path, "id int", **change)
    with pytest.raises(DataError, match="read up to byte 4, and can only be read in one step now"):
        changed.advance(Channel(channel.id, None, channel.data), step.end, Limit())


def test_a_known_name_of_an_encoding_is_its_canonical_one() -> None:
    assert Encoding.of(" ISO-8859-1 ") == Encoding.of("latin1")
    assert Encoding.of("UTF8") == Encoding.of("utf-8-sig") == Encoding("utf-8")
