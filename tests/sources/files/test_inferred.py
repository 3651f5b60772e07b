"""`files` with `infer=true`: what Arrow finds in the first files, kept in a file from the first `load()` on."""

import gzip
import json
import os
import time
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from typer.testing import CliRunner

from spark_ext.cli import app
from spark_ext.errors import ConfigurationError, DataError
from spark_ext.sources.files.inferred import FrozenSchema
from spark_ext.sources.files.source import Files
from tests.sources.files.files_kit import options, read_all, read_bad, source

PLAIN = (
    "id,zip,price,day,at,name,none,on\n"
    "1,01067,1.5,2024-01-02,2024-01-02 03:04:05,Ä,,true\n"
    "2,20095,2,2024-01-03,,b,,false\n"
)
DDL = (
    "`id` bigint, `zip` string, `price` double, `day` date, `at` timestamp, `name` string, `none` string, `on` boolean"
)


def inferring(folder: Path, **more: str) -> dict[str, str]:
    return {"infer": "true", "schema_location": str(folder.parent / f"{folder.name}.schema.json"), **more}


def read(folder: Path, **more: str) -> list[dict[str, Any]]:
    return read_all(source(folder, **inferring(folder, **{"header": "true", **more})))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def ddl_of(folder: Path, **more: str) -> str:
    source(folder, **inferring(folder, **{"header": "true", **more}))
    found = FrozenSchema.find(str(folder.parent / f"{folder.name}.schema.json"), "test")
    assert found is not None
    return found.ddl


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize("more", [{}, {"encoding": "utf-16"}, {"multiline": "true"}], ids=["lines", "utf-16", "values"])
def test_columns_of_csv(place: Path, ending: str, more: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A number with a zero before it is text; a column without values too."""
    content = PLAIN.encode(more.get("encoding", "utf-8"))
    (place / f"x.{ending}").write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    assert ddl_of(place, **more) == DDL
    assert f"inferred {DDL}; kept in {place.parent}/in.schema.json" in capsys.readouterr().err
    rows = read(place, **more)
    assert rows[0] == {
        "id": 1, "zip": "01067", "price": 1.5, "day": date(2024, 1, 2), "name": "Ä", "none": None, "on": True,
        "at": datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
    }  # fmt: skip
    assert capsys.readouterr().err == "", "inferred once"


def test_columns_of_json(place: Path) -> None:
    (place / "x.json").write_text(
        'null\n{"n": 1, "s": {"a": [1, 2.5], "b": null}}\n{"n": 2, "t": "2024-01-02T03:04:05Z"}\n'
    )
    assert ddl_of(place) == "`n` bigint, `s` struct<a:array<double>,b:string>, `t` timestamp"
    assert [row["n"] for row in read(place)] == [None, 1, 2]


def test_what_the_other_options_say_holds_for_the_columns(place: Path) -> None:
    (place / "day=1").mkdir()
    (place / "day=1" / "x.csv").write_text("Title\n# c\n Order ID ;When;n\n1;31.12.2024;NA\n2;01.01.2025;7\nbad\n")
    more = {
        "skip_rows": "1", "comment": "#", "sep": ";", "header": "normalize", "columns": "n=amount", "null_value": "NA",
        "timestamp_format": "%d.%m.%Y",
    }  # fmt: skip
    assert ddl_of(place, **more) == "`order_id` bigint, `when` timestamp, `amount` bigint, `day` string"
    given = inferring(place, on_bad_row="quarantine", metadata="true", **more)
    rows, bad = read_bad(source(place, **given))
    assert [(row["order_id"], row["amount"], row["day"]) for row in rows] == [(1, None, "1"), (2, 7, "1")]
    assert rows[0]["_metadata"]["file_name"] == "x.csv" and [row.raw for row in bad] == [b"bad"]


def test_types_of_several_files_go_together_or_are_text(place: Path) -> None:
    (place / "a.csv").write_text("n,m,k\n1,1,\n")
    (place / "b.csv").write_text("n,m,j\n1.5,x,2\n")
    assert ddl_of(place) == "`n` double, `m` string, `k` string, `j` bigint"
    assert read(place) == [{"n": 1.0, "m": "1", "k": None, "j": None}, {"n": 1.5, "m": "x", "k": None, "j": 2}]


kinds: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(-(2**63), 2**63 - 1), "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(st.sampled_from("xyz é"), min_size=1).map(lambda text: f"x{text}"),
    "date": st.dates(), "boolean": st.booleans(),
}  # fmt: skip


rows_of = st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=4).flatmap(
    lambda chosen: st.tuples(
        st.just(chosen), st.lists(st.tuples(*(kinds[kind] for kind in chosen)), min_size=1, max_size=5)
    )
)


@given(rows_of)
@settings(max_examples=40, deadline=None)
def test_values_are_read_as_what_they_are(
    tmp_path_factory: pytest.TempPathFactory, sample: tuple[list[str], list[tuple[Any, ...]]]
) -> None:
    chosen, rows = sample
    folder = tmp_path_factory.mktemp("x") / "in"
    folder.mkdir()
    text: dict[str, Callable[[Any], str]] = {"boolean": lambda value: str(value).lower(), "double": repr}
    lines = [",".join(text.get(kind, str)(value) for kind, value in zip(chosen, row, strict=True)) for row in rows]
    (folder / "x.csv").write_text("\n".join([",".join(f"c{n}" for n in range(len(chosen))), *lines]))
    found = read(folder)
    assert [list(row.values()) for row in found] == [list(row) for row in rows]


def test_later_files_do_not_change_the_columns(place: Path) -> None:
    (place / "a.csv").write_text("n\n1\n")
    assert ddl_of(place) == "`n` bigint"
    (place / "a.csv").write_text("n,m\nx,2\n3,4\n")
    with pytest.raises(DataError, match="its columns m are not among those that were inferred and kept"):
        read(place)
    more = {"header": "true", "on_bad_row": "quarantine"}
    rows, bad = read_bad(source(place, **inferring(place, on_bad_file="quarantine", **more)))
    assert rows == [] and [one.position for one in bad] == [{"file": "a.csv"}]
    more["schema_evolution"] = "ignore"
    rows, bad = read_bad(source(place, **inferring(place, **more)))
    assert rows == [{"n": 3}] and [row.raw for row in bad] == [b"x,2"]
    (place / "a.csv").unlink()
    assert ddl_of(place) == "`n` bigint", "no file is needed any more"


def test_what_later_lines_of_json_have_more_is_a_bad_row(place: Path) -> None:
    """Or refused with its line, or left out; within a struct as well."""
    (place / "a.json").write_text('{"n": 1, "s": {"a": 1}}\n')
    ddl_of(place)
    more = ['{"n": 2, "m": 1}', '{"n": 3, "s": {"b": 1}}', '{"n": 4, "m": 1', '{"n": 5}']
    (place / "b.json").write_text("\n".join(more))
    rows, bad = read_bad(source(place, **inferring(place, on_bad_row="quarantine")))
    assert [row["n"] for row in rows] == [1, 5]
    assert [("columns m are not" in one.reason, "fields that are not" in one.reason) for one in bad] == [
        (True, False), (False, True), (False, False)
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"'b\.json': its columns m are not among"):
        read(place)
    with pytest.raises(DataError, match=r"'b\.json': it has fields that are not among"):
        read(place, multiline="true")
    assert [row["n"] for row in read(place, schema_evolution="ignore", pattern="[a].json")] == [1]
    (place / "b.json").write_text("\n".join(more[:2]))
    assert [row["n"] for row in read(place, schema_evolution="ignore")] == [1, 2, 3]


EVOLVING = {"schema_evolution": "add_columns", "header": "true"}


def test_columns_of_later_files_are_added_at_the_next_load(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Types stay; a file may lack what was added, and nothing else; folders and renamed columns count."""
    (place / "a.csv").write_text("n\n1\n")
    more = {**EVOLVING, "header": "normalize", "columns": "Was=n", "on_bad_row": "quarantine"}
    assert ddl_of(place, **{**more, "columns": "n=n"}) == "`n` bigint"
    (place / "b.csv").write_text("Was,Is New\n2,01\nx,02\n")
    (place / "day=1").mkdir()
    (place / "day=1" / "c.csv").write_text("N,When\n3,2024-01-02\n")
    (place / "a.csv").unlink()
    capsys.readouterr()
    given = inferring(place, **more, pattern="[bc].csv")
    made = source(place, **{**given, "pattern": "c.csv", "columns": "n=n"})
    assert made.options.identity()["schema.when"] == "date"
    os.utime(place / "b.csv", ns=((future := time.time_ns() + 60_000_000_000), future))
    rows, bad = read_bad(source(place, **{**given, "pattern": "b.csv"}))
    assert rows == [{"n": 2, "when": None, "day": None, "is_new": "01"}] and [one.raw for one in bad] == [b"x,02"]
    told = capsys.readouterr().err
    assert "added `when` date, as file 'day=1/c.csv' has it; kept in" in told and "added `is_new` string" in told
    (place / "c.csv").write_text("is new\n03\n")
    with pytest.raises(DataError, match="has no column 'n'"):
        read_all(source(place, **{**given, "pattern": "c.csv", "columns": "n=n"}))
    kept = json.loads((place.parent / "in.schema.json").read_text())
    assert kept["optional"] == {"when": "day=1/c.csv", "day": "day=1/c.csv", "is_new": "b.csv"}


@pytest.mark.parametrize("name", ["b.csv", "b.json"])
def test_a_column_that_appears_after_a_load_waits_for_the_next_one(place: Path, name: str) -> None:
    """Also where bad rows and bad files are put aside: with the column its rows are good."""
    csv = name.endswith("csv")
    (place / f"a{name[1:]}").write_text("n\n1\n" if csv else '{"n": 1}\n')
    given = inferring(place, **EVOLVING, on_bad_row="quarantine", on_bad_file="quarantine")
    loaded = source(place, **given)
    (place / name).write_text("n,m\n2,x\n" if csv else '{"n": 2, "m": "x"}\n{"n": 2\n')
    with pytest.raises(DataError, match=f"'{name}': its columns m are not among"):
        read_bad(loaded)
    rows, bad = read_bad(source(place, **given))
    assert rows == [{"n": 1, "m": None}, {"n": 2, "m": "x"}] and len(bad) == (0 if csv else 1)
    (place / name).write_text('{"N": 3}' if not csv else "n\n3\n")
    if not csv:
        with pytest.raises(ConfigurationError, match="'n' and 'N' differ in case only"):
            source(place, **given)


FRAMES = st.lists(st.lists(st.sets(st.sampled_from("abcd")), max_size=3), min_size=1, max_size=3)


@given(FRAMES, st.sampled_from(["csv", "json"]))
@settings(max_examples=12, deadline=None)
def test_columns_that_come_over_time_are_those_of_pandas(
    tmp_path_factory: pytest.TempPathFactory, loads: list[list[set[str]]], kind: str
) -> None:
    """Before each load there are further files with some of the columns; what was read in between is the same."""
    folder, frames = tmp_path_factory.mktemp("x") / "in", [pd.DataFrame({"id": [0], "z": ["x"]})]
    folder.mkdir()
    for load in [[set[str]()], *loads]:
        for names in load:
            more = {one: [f"{one}{len(frames)}", "05"] for one in sorted(names)}
            frames.append(pd.DataFrame({"z": ["y", "z"], "id": [len(frames), -1], **more}))
        for number, frame in enumerate(frames):
            path = folder / f"{number:02}.{kind}"
            if not path.exists():
                text = frame.to_csv(index=False) if kind == "csv" else frame.to_json(orient="records", lines=True)
                path.write_text(text)
        found = pd.DataFrame(read(folder, schema_evolution="add_columns"))
        wanted = pd.concat(frames, ignore_index=True)
        pd.testing.assert_frame_equal(found.fillna("-"), wanted[found.columns].fillna("-"), check_dtype=False)
        assert {*found.columns} == {*wanted.columns}


def test_a_kept_schema_that_was_edited_holds_from_the_next_load(place: Path) -> None:
    (place / "a.csv").write_text("n\n1\n")
    assert ddl_of(place) == "`n` bigint"
    loaded = source(place, **inferring(place, header="true"))
    kept = place.parent / "in.schema.json"
    kept.write_text(kept.read_text().replace("bigint", "string"))
    with pytest.raises(ConfigurationError, match=r"the columns are struct<n:bigint>, and '.*' has struct<n:string>"):
        loaded.resume([], frozenset())
    assert read(place) == [{"n": "1"}]
    with pytest.raises(ConfigurationError, match=r"remove \.schema"):
        source(place, "n int", **inferring(place, header="true")).resume([], frozenset())


def test_a_kept_schema_that_is_gone_is_refused_while_the_source_is_in_use(place: Path) -> None:
    (place / "a.csv").write_text("n\n1\n")
    loaded = source(place, **inferring(place, header="true"))
    before = loaded.options.identity()
    assert before["schema"] == "`n` bigint"
    (place.parent / "in.schema.json").unlink()
    assert loaded.options.identity()["schema"] == ""
    with pytest.raises(ConfigurationError, match="is gone"):
        loaded.resume([], frozenset())


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "is no frozen schema"), ("[]", "is no frozen schema"), ('{"version": 1, "path": "p"}', "is no frozen"),
        ('{"version": 1, "path": "p", "columns": {"a": "nonsense"}}', "not a type: 'nonsense'"),
        ('{"version": 1, "path": "p", "columns": {}}', "has no columns"),
        ('{"version": 1, "path": "p", "columns": {"a": "int"}, "optional": {"b": "x"}}', r"unknown columns \['b'\]"),
        ('{"version": 1, "path": "p", "columns": {"a": "int"}, "seen": "now"}', "'seen' is no number"),
        ('{"version": 2, "path": "p", "columns": {"a": "int"}}', "version 2, of a newer release"),
        ('{"version": 1, "path": "/elsewhere", "columns": {"n": "int"}}', "has the columns of '/elsewhere', and this"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_schema_of_this_source_is_refused(place: Path, content: str, match: str) -> None:
    (place / "a.csv").write_text("n\n1\n")
    (place.parent / "in.schema.json").write_text(content)
    with pytest.raises(ConfigurationError, match=match):
        read(place)


FILES: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "without a header": ({"a.csv": "1\n"}, {"header": "false"}, "files with a header"),
    "Parquet": ({"a.parquet": "PAR1"}, {}, r"not for 'a\.parquet'"),
    "no files": ({}, {}, "contains no file to take the schema from"),
    "a column twice": ({"a.csv": "n,n\n1,2\n"}, {}, "does not name each column once"),
    "a column without a name": ({"a.csv": "n,\n1,2\n"}, {}, "does not name each column once"),
    "text and number": (
        {"a.json": '{"n": 1}', "b.json": '{"n": "x"}'},
        {},
        r"type string in file 'b\.json', and int64",
    ),
    "no JSON": ({"a.json": "n\n"}, {}, "damaged"),
    "no columns": ({"a.json": "{}\n"}, {}, "have no columns"),
}


@pytest.mark.parametrize(("files", "more", "match"), FILES.values(), ids=FILES.keys())
def test_what_cannot_be_inferred_is_refused(
    place: Path, files: dict[str, str], more: dict[str, str], match: str
) -> None:
    for name, text in files.items():
        (place / name).write_text(text)
    with pytest.raises((ConfigurationError, DataError), match=match):
        read(place, **more)
    assert not (place.parent / "in.schema.json").exists()


def test_a_file_that_cannot_be_read_is_left_out_of_the_sample(place: Path) -> None:
    (place / "a.csv.gz").write_bytes(b"no archive")
    (place / "b.csv").write_text("n\n1\n")
    with pytest.raises(DataError, match=r"'a\.csv\.gz'"):
        ddl_of(place)
    assert ddl_of(place, on_bad_row="quarantine", on_bad_file="quarantine") == "`n` bigint"


def test_bad_options_are_refused(place: Path) -> None:
    (place / "a.csv").write_text("n\n1\n")
    wrong: dict[str, dict[str, str]] = {
        "need each other": {"infer": "true"}, "and schema_location": {"schema_location": "/x"},
        "infer is for CSV and JSON: orc": inferring(place, format="orc"),
        "schema_evolution needs infer=true": {"schema_evolution": "ignore"},
    }  # fmt: skip
    for match, more in wrong.items():
        with pytest.raises(ConfigurationError, match=match):
            Files(options(place, **more))
    with pytest.raises(ConfigurationError, match="in the folder that is read"):
        source(place, infer="true", schema_location=str(place / "kept.json"), header="true")


def test_the_command_prints_what_is_kept(place: Path) -> None:
    (place / "x.csv").write_text(PLAIN)
    assert ddl_of(place) == DDL
    kept = str(place.parent / "in.schema.json")
    assert CliRunner().invoke(app, ["schema", kept]).stdout.strip() == DDL
    found = json.loads(CliRunner().invoke(app, ["schema", kept, "--json"]).stdout)
    assert found["path"] == str(place) and found["columns"]["zip"] == "string"
    assert isinstance(CliRunner().invoke(app, ["schema", kept + "x"]).exception, ConfigurationError)
    assert isinstance(source(place, **inferring(place, header="true")).schema(), StructType)
