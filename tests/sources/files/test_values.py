"""`files` into Arrow: a value is that of the file, or its row is a bad row, or the file is refused."""

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import types

from spark_ext.errors import DataError
from spark_ext.sources.contract import BadRow, Channel, Limit
from spark_ext.sources.files import lines
from tests.schemas.text_oracle import KINDS, plain, same, texts, value_of
from tests.sources.files.files_kit import opened

few = settings(max_examples=settings().max_examples // 4)  # each writes a file


def read(path: Path, ddl: str, **options: str) -> tuple[dict[int, Any], list[BadRow]]:
    made, channel = opened(path, ddl, on_bad_row="quarantine", **options)
    bad: list[BadRow] = []
    made._collect = bad.append
    end = made.advance(channel, channel.begin, Limit()).end
    batches = list(made.read(Channel(channel.id, None, channel.data), channel.begin, end))
    return {n: value for one in batches for n, value in zip(plain(one["n"]), plain(one["v"]), strict=True)}, bad


def file(folders: pytest.TempPathFactory, name: str, content: bytes = b"") -> Path:
    path = folders.mktemp("f") / name
    path.write_bytes(content)
    return path


MIXED = re.compile("(?!true|True|TRUE|false|False|FALSE)(?i:true|false)")  # Arrow refuses it as a boolean of CSV


@given(st.lists(st.tuples(texts, st.booleans()), min_size=1, max_size=6), st.sampled_from(list(KINDS)))
@example([("tRue", False), ("TRUE", True)], "boolean")
@example([("5", False), ("0xFFFFFFFF", False), ("+7", False)], "int")
@example([("1" + "0" * 256, False), ("9" * 39, False)], "decimal(38,0)")
@example([("12345678", False), ("1.239", False)], "decimal(5,2)")
@few
def test_csv(tmp_path_factory: pytest.TempPathFactory, values: list[tuple[str, bool]], name: str) -> None:
    kind = KINDS[name]
    trimmed = not (types.is_string(kind) or types.is_boolean(kind) or types.is_timestamp(kind))
    wanted = [
        None if not (text or quoted) else value_of(text.strip(" \t") if trimmed else text, kind)
        for text, quoted in values
    ]
    rows = [f'{n},"{text}"' if quoted else f"{n},{text}" for n, (text, quoted) in enumerate(values)]
    path = file(tmp_path_factory, "x.csv", "\n".join(rows).encode())
    good, bad = read(path, f"n bigint, v {name}")
    assert len(good) + len(bad) == len(values)
    for n, value in good.items():
        assert same(value, wanted[n]), (values[n], value, wanted[n])
    if not (types.is_decimal(kind) or types.is_timestamp(kind)):  # of which some texts are refused
        refused = {n for n, (text, _) in enumerate(values) if types.is_boolean(kind) and MIXED.fullmatch(text)}
        assert [n for n, one in enumerate(wanted) if one is not None and n not in {*good, *refused}] == []
    if bad:
        with pytest.raises(DataError):
            read(path, f"n bigint, v {name}", multiline="true")
    else:
        assert all(map(same, read(path, f"n bigint, v {name}", multiline="true")[0].values(), good.values()))


class Number(str):
    """A number in JSON, by its characters."""


REFUSED = object()


def json_value(token: str, kind: pa.DataType) -> Any:
    try:
        found = json.loads(token, parse_int=Number, parse_float=Number, parse_constant=Number)
    except ValueError:
        return REFUSED
    if found is None or (isinstance(found, bool) and types.is_boolean(kind)):
        return found
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    text = types.is_string(kind) or types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind)
    if (number and isinstance(found, Number)) or (text and isinstance(found, str) and not isinstance(found, Number)):
        return value_of(str(found), kind) if value_of(str(found), kind) is not None else REFUSED
    return REFUSED


tokens = st.one_of(
    texts.map(json.dumps),
    texts.filter(lambda text: not set(text) & set("\0:")),
    st.sampled_from(["null", "true", "NaN", "Infinity", "-Infinity", '"\\ud800"', '"\\u0000\u00e9"', '{"a":1}', "[1]"]),
)


@given(st.lists(tokens, min_size=1, max_size=6), st.sampled_from(list(KINDS)))
@example(["1" + "0" * 256, '"1e300"', "9" * 39], "decimal(38,0)")
@example(["12345678", "1.239"], "decimal(5,2)")
@example(["-NaN", "NaN", "-Inf", "Inf", "-Infinity", "Infinity"], "double")
@example(['"a:-NaN,"', '":Inf,"', '"[-Inf]"'], "string")
@few
def test_json(tmp_path_factory: pytest.TempPathFactory, values: list[str], name: str) -> None:
    path = file(
        tmp_path_factory, "x.json", "\n".join(f'{{"n":{n},"v":{token}}}' for n, token in enumerate(values)).encode()
    )
    good, bad = read(path, f"n bigint, v {name}")
    assert len(good) + len(bad) == len(values)
    for n, value in good.items():
        assert same(value, json_value(values[n], KINDS[name])), (values[n], value)


DAY = 86_400_000_000
EDGE = 1 << 63
INTS = st.integers(-EDGE, EDGE - 1) | st.integers(-2, 2) | st.sampled_from([-EDGE, EDGE - 1])


@given(st.lists(st.none() | INTS | st.sampled_from([9_089_380_393_200_000_000, -210_866_803_200_000_001]), max_size=5))
@few
def test_parquet_of_int96(tmp_path_factory: pytest.TempPathFactory, values: list[int | None]) -> None:
    """A time that does not fit is refused; an INT96 of zeros, of the first Julian day, is 1970."""
    days = [value if value is None else value // DAY + 2_440_588 for value in values]
    values = [value for value, day in zip(values, days, strict=True) if day != 0]
    path = file(tmp_path_factory, "x.parquet")
    times = pa.array(values, pa.int64()).view(KINDS["timestamp"])
    nested = pa.ListArray.from_arrays(list(range(len(values) + 1)), times)
    rows = pa.table({"n": range(len(values)), "v": times, "l": nested})
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)
    refused = [REFUSED if value is not None and value // DAY < -2_440_588 else value for value in values]
    good, bad = read(path, "n bigint, v timestamp")
    assert good == {n: value for n, value in enumerate(refused) if value is not REFUSED}
    assert len(good) + len(bad) == len(refused)
    made, channel = opened(path, "n bigint, l array<timestamp>")
    if REFUSED in refused:
        with pytest.raises(DataError, match="an INT96 time is out of range"):
            list(made.read(channel, 0, len(values)))


pieces = st.lists(st.sampled_from(["\r\n", "\r", "\n", '""', ",", "a", "bcd", "\u00e9" * 9]), max_size=12).map("".join)


@given(
    st.lists(pieces, min_size=1, max_size=6),
    st.integers(2, 40),
    st.sampled_from(["utf-8", "utf-16", "cp1252"]),
    st.booleans(),
)
@example(["a" * 9 + "\r\n"], 16, "utf-8", False)
@few
def test_csv_over_several_lines(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], block: int, encoding: str, packed: bool
) -> None:
    text = "n,v\n" + "".join(f'{n},"{value}"\n' for n, value in enumerate(values))
    wanted = [row[1] for row in csv.reader(io.StringIO(text, newline=""))][1:]
    content = text.encode(encoding)
    path = file(tmp_path_factory, "x.csv.gz" if packed else "x.csv", gzip.compress(content) if packed else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", block)
        good, _ = read(path, "n bigint, v string", header="true", multiline="true", encoding=encoding)
    assert list(good.values()) == wanted


@given(st.lists(st.text("a\u00e9 }{\n\r", max_size=40), min_size=1, max_size=6), st.integers(8, 60))
@few
def test_json_over_several_lines(tmp_path_factory: pytest.TempPathFactory, values: list[str], block: int) -> None:
    text = "\r\n".join(json.dumps({"n": n, "v": value}, indent=1) for n, value in enumerate(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", block)
        good, _ = read(file(tmp_path_factory, "x.json", text.encode()), "n bigint, v string", multiline="true")
    assert list(good.values()) == values
