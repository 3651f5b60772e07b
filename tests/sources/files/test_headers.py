"""`files`: lines before a header, names that are normalized, and columns under other names; as pandas reads them."""

import bz2
import gzip
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import Limit
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import drive
from tests.sources.files.files_kit import opened, options, read_all, read_bad, source

PREAMBLE = 'Sales report, "2024\n\n# it\'s for 3" screens\n'
PACKED: dict[str, Callable[[bytes], bytes]] = {"csv": bytes, "csv.gz": gzip.compress, "csv.bz2": bz2.compress}

names_of = st.lists(
    st.text(st.sampled_from("aB \t"), min_size=1, max_size=4).filter(str.strip), min_size=1, max_size=4,
    unique_by=lambda name: "_".join(name.lower().split()),
)  # fmt: skip


@given(
    skipped=st.lists(st.sampled_from(["", "a title", "x,y,z,z,z", "# no comment", "ü"]), max_size=5),
    header=names_of,
    rows=st.lists(st.text(st.sampled_from("xy ü"), min_size=1, max_size=3), max_size=5),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    form=st.sampled_from(
        [
            ("csv", "utf-8", {}), ("csv.gz", "utf-8", {}), ("csv", "utf-8-sig", {}), ("csv", "cp1252", {}),
            ("csv", "utf-16", {}), ("csv.bz2", "utf-16-le", {}), ("csv", "utf-8", {"multiline": "true"}),
            ("csv.gz", "utf-16", {"multiline": "true"}),
        ]
    ),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_what_pandas_reads(
    tmp_path_factory: pytest.TempPathFactory,
    skipped: list[str],
    header: list[str],
    rows: list[str],
    end: str,
    form: tuple[str, str, dict[str, str]],
) -> None:
    """Each column under its normal name, and in other order; the first one renamed as well."""
    ending, encoding, more = form
    root = tmp_path_factory.mktemp("in")
    lines = [*skipped, ",".join(header), *(",".join([f"{row}."] * len(header)) for row in rows)]
    (root / f"x.{ending}").write_bytes(PACKED[ending](end.join(lines).encode(encoding)))
    # pandas miscounts the lines that it skips if a blank is behind a CR.
    plain = io.StringIO("\n".join(lines))
    found = pd.read_csv(plain, skiprows=len(skipped), dtype=str)
    normal = ["_".join(name.lower().split()) for name in header]
    ours = ["first", *normal[1:]][::-1]
    declared = ", ".join(f"`{name}` string" for name in ours)
    made = {"skip_rows": str(len(skipped)), "header": "normalize", "columns": f"{header[0]}=first"}
    read = read_all(source(root, declared, encoding=encoding, **made, **more))
    wanted = found.set_axis(["first", *normal[1:]], axis="columns")[ours]
    assert pd.DataFrame(read, columns=ours).astype(object).equals(wanted.astype(object))


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("more", [{}, {"multiline": "true"}, {"encoding": "utf-16"}], ids=["lines", "values", "utf-16"])
def test_skipped_lines_are_lines_whatever_is_in_them(tmp_path: Path, ending: str, more: dict[str, str]) -> None:
    """A quote in them opens no value, and without a header the rows begin behind them."""
    text = PREAMBLE + "1,a\n2,b\n"
    (tmp_path / f"x.{ending}").write_bytes(PACKED[ending](text.encode(more.get("encoding", "utf-8"))))
    rows = read_all(source(tmp_path, "n int, s string", skip_rows="3", **more))
    assert rows == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]


@pytest.mark.parametrize("header", ["true", "false"])
@pytest.mark.parametrize("limit", ["max_bytes_per_epoch", "max_rows_per_epoch"])
def test_each_row_once_under_limits(tmp_path: Path, header: str, limit: str) -> None:
    (tmp_path / "x.csv").write_text(PREAMBLE + ("s,n\n" if header == "true" else "") + "a,1\nb,2\nc,3\n")
    given = options(tmp_path, skip_rows="3", header=header)
    trace = drive(Files, given, schema=columns("s string, n string"), limits=[{limit: "1"}])
    assert trace.rows("x.csv").to_pylist() == [{"s": s, "n": n} for s, n in ("a1", "b2", "c3")]


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_bad_line_is_named_as_an_editor_counts(tmp_path: Path, ending: str, encoding: str) -> None:
    text = PREAMBLE + "n,s\n1,a\nx,b\n"
    (tmp_path / f"x.{ending}").write_bytes(PACKED[ending](text.encode(encoding)))
    given = {"skip_rows": "3", "header": "true", "encoding": encoding}
    byte = text.index("x,b")
    with pytest.raises(DataError, match=rf"line 6 \(byte {byte}\) does not fit"):
        read_all(source(tmp_path, "n int, s string", **given))
    rows, bad = read_bad(source(tmp_path, "n int, s string", on_bad_row="quarantine", **given))
    assert rows == [{"n": 1, "s": "a"}]
    assert [(row.raw, row.position) for row in bad] == [(b"x,b", {"file": f"x.{ending}", "byte": byte})]


@pytest.mark.parametrize("ending", PACKED)
def test_a_file_with_fewer_lines_than_are_skipped_is_refused(tmp_path: Path, ending: str) -> None:
    def read(text: str, **more: str) -> list[dict[str, Any]]:
        (tmp_path / f"x.{ending}").write_bytes(PACKED[ending](text.encode()))
        return read_all(source(tmp_path, "n int", skip_rows="3", **more))

    for header in ("true", "false"):
        assert read("a\n\nc", header=header) == [] == read("", header=header)
        with pytest.raises(DataError, match="'skip_rows' is 3, and it has 2 lines"):
            read("a\nb\n", header=header)


def test_a_half_read_file_goes_on_when_fewer_lines_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("title\n1\n2\n3\n")
    made, channel = opened(tmp_path, "n int", skip_rows="1")
    step = made.advance(channel, 0, Limit(rows=1))
    rows = source(tmp_path, "n int").read(channel, step.end, channel.data[0])
    assert [n for batch in rows for n in batch["n"].to_pylist()] == [2, 3]


@pytest.mark.parametrize(
    ("header", "more", "match"),
    [
        ("Order ID, order id", {"header": "normalize"}, "'order_id' twice, as 'Order ID' and ' order id'"),
        ("id,ID,Order_ID", {"columns": "ID=order_id,id=order_ID"}, "which is no declared column"),
        ("id,order_id", {"columns": "id=order_id"}, "'order_id' twice, as 'id' and 'order_id'"),
        ("id,id", {"columns": "id=order_id"}, "'id' twice, as 'id' and 'id'"),
        ("Id,iD", {"columns": "ID=order_id"}, "no column 'ID'; it has: Id, iD"),
        ("order_id", {"columns": "nr=order_id"}, "no column 'nr'; it has: order_id"),
        ("order_id", {"columns": "order_id=order id"}, "to 'order id', which is no declared column; declared are: ord"),
        ("Order ID", {}, "no column 'order_id'; it has: Order ID"),
    ],
)
def test_a_header_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, header: str, more: dict[str, str], match: str
) -> None:
    (tmp_path / "x.csv").write_text(f"{header}\n1,2,3\n")
    with pytest.raises((DataError, ConfigurationError), match=re.escape(match)):
        read_all(source(tmp_path, "order_id int", **{"header": "true", **more}))


def test_columns_may_change_their_names_with_each_other(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a,b,"c, d=e"\n1,2,3\n')
    assert source(tmp_path, "a int", header="true", columns="d=e=a").options.columns == {"d=e": "a"}
    made = source(tmp_path, "a int, b int, c int", header="true", columns='{"a": "b", "b": "a", "c, d=e": "c"}')
    assert read_all(made) == [{"a": 2, "b": 1, "c": 3}]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"skip_rows": "-1"}, "skip_rows"), ({"header": "maybe"}, "true, false or normalize"),
        ({"columns": "a=b"}, "needs header"), ({"columns": "a", "header": "true"}, "the form 'Order ID=order_id"),
        ({"columns": "=b", "header": "true"}, "the form 'Order ID=order_id"),
        ({"columns": "a=b,a=c", "header": "true"}, "'a' is renamed twice"),
        ({"columns": '{"a": "b", "a": "c"}', "header": "true"}, "'a' is renamed twice"),
        ({"columns": "a=c,b=c", "header": "true"}, "'c' is the new name of two columns"),
        ({"columns": '{"a": 1}', "header": "true"}, "or a JSON object"),
        ({"skip_rows": "1", "format": "json"}, "skip_rows is for CSV: json files"),
        ({"header": "normalize", "format": "parquet"}, "header is for CSV: parquet files"),
    ],
)  # fmt: skip
def test_bad_options_are_refused(tmp_path: Path, more: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Files(options(tmp_path, **more))


@pytest.mark.parametrize("more", [{"skip_rows": "1"}, {"columns": "x=n", "header": "true"}], ids=["skip", "columns"])
def test_an_option_of_csv_is_refused_for_another_file(tmp_path: Path, more: dict[str, str]) -> None:
    """A key that is missing in JSON would be null."""
    (tmp_path / "x.json").write_text('{"x": 1}\n')
    with pytest.raises(ConfigurationError, match=rf"'{next(iter(more))}' is for CSV, and file 'x\.json' is json"):
        read_all(source(tmp_path, "n int", **more))
