"""`files` with `on_bad_file=quarantine`: a file that cannot be read as a whole is one bad row, and others are read."""

import gzip
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_ext.errors import ConfigurationError, DataError
from spark_ext.schemas.ddl import columns
from spark_ext.sources.contract import BadRow, Channel, Limit
from spark_ext.sources.files.source import Files
from spark_ext.testing.source_kit import drive
from tests.sources.files.files_kit import options, read_bad, source

ASIDE = {"on_bad_file": "quarantine", "on_bad_row": "quarantine"}
PACKED = gzip.compress("".join(f"n\n{n}\n" for n in random.Random(1).choices(range(9**9), k=900)).encode())

BAD: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "a header that does not fit": ("x.csv", b"m\n1\n", {}, "no column 'n'"),
    "fewer lines than are skipped": ("x.csv", b"a\nb\n", {"skip_rows": "5"}, "'skip_rows' is 5"),
    "a damaged archive": ("x.csv.gz", PACKED[:-9], {}, "damaged"),
    "no archive": ("x.csv.gz", b"n\n1\n", {}, "damaged"),
    "another encoding": ("x.csv", "n\n1\n".encode("utf-16"), {"encoding": "cp1252"}, "byte order mark of utf-16"),
    "an open quote": ("x.csv", b'n\n"1\n', {"multiline": "true"}, "schema: a quoted value is not closed"),
    "no Parquet": ("x.parquet", b"PAR1 and nothing more", {}, "damaged"),
    "other columns": ("x.parquet", b"", {}, "no column 'n'"),
    "no Avro": ("x.avro", b"Obj\1 and nothing more", {}, "x.avro"),
    "no ORC": ("x.orc", b"ORC and nothing more", {}, "x.orc"),
    "a folder's value": ("n=one/x.csv", b"s\nb\n", {}, "one"),
}


@pytest.mark.parametrize(("name", "content", "more", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_one_row_and_others_are_read(
    tmp_path: Path, name: str, content: bytes, more: dict[str, str], reason: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    if not content:
        pq.write_table(pa.table({"m": [1]}), file)
    good = "\n" * int(more.get("skip_rows", "0")) + "n\n7\n"
    (tmp_path / "y.csv").write_bytes(good.encode())
    given = {"header": "true", "pattern": "[xy].*", **more, **ASIDE}
    rows, bad = read_bad(source(tmp_path, "n int", **given))
    assert rows == [{"n": 7}]
    assert [(row.position, row.raw) for row in bad] == [({"file": name}, None)]
    assert reason in bad[0].reason and name in bad[0].reason
    with pytest.raises(DataError, match="x"):
        read_bad(source(tmp_path, "n int", **{**given, "on_bad_file": "fail"}))


def ids(made: Files) -> list[str]:
    return [channel.id for channel in made.discover()]


def test_a_bad_file_is_tried_again_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("m\n1\n")
    given = {"header": "true", **ASIDE}
    (first,) = source(tmp_path, "n int", **given).discover()

    def later() -> Files:
        made = source(tmp_path, "n int", **given)
        made.resume([], frozenset({first.id}))
        return made

    assert ids(later()) == [first.id]
    os.utime(path, ns=(1, 1))
    (second,) = later().discover()
    assert second.id != first.id and second.data[:2] == [4, 1]
    path.write_text("n\n1\n")
    assert ids(later()) == ["x.csv"]


def test_what_was_planned_holds_whatever_the_file_is_by_then(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("m\n1\n")
    made = source(tmp_path, "n int", header="true", **ASIDE)
    (channel,) = made.discover()
    step = made.advance(channel, 0, Limit(rows=1))
    assert (step.finished, step.rows) == (True, 0)
    planned = Channel(channel.id, None, channel.data)
    for change in (lambda: path.write_text("n\n1\n"), path.unlink):
        change()
        again = source(tmp_path, "n int", header="true", **ASIDE)
        bad: list[BadRow] = []
        again._collect = bad.append
        assert list(again.read(planned, 0, step.end)) == []
        assert [row.reason for row in bad] == [channel.data[2]]
        assert again.split(planned, 0, step.end, 4) == [(0, step.end)]
    failing = source(tmp_path, "n int", header="true")
    with pytest.raises(DataError, match=r"no column 'n'.*put aside when this epoch was planned"):
        list(failing.read(planned, 0, step.end))


def test_a_file_that_was_good_is_not_judged_again_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("n\n1\n")
    made = source(tmp_path, "n int", header="true", watch="true", **ASIDE)
    (channel,) = made.discover()
    path.write_text("m\n1\n")
    assert ids(made) == ["x.csv"]
    again = source(tmp_path, "n int", header="true", watch="true", **ASIDE)
    again.resume([Channel(channel.id, None, channel.data)], frozenset())
    assert ids(again) == ["x.csv"]


def test_a_file_that_changes_while_it_is_inspected_is_not_called_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.csv"
    path.write_text("m\n1\n")
    made = source(tmp_path, "n int", header="true", **ASIDE)
    entries = made._listing.entries()
    path.write_text("n\n1\n2\n")
    monkeypatch.setattr(type(made._listing), "entries", lambda _: entries)
    with pytest.raises(DataError, match="had 4 bytes when it was discovered"):
        list(made.discover())


@given(kinds=st.lists(st.booleans(), min_size=1, max_size=6), seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_each_file_once_under_crashes_and_replays(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[bool], seed: int
) -> None:
    root = tmp_path_factory.mktemp("in")
    for number, good in enumerate(kinds):
        (root / f"{number}.csv").write_text(f"{'n' if good else 'm'}\n{number}\n{number}\n")
    given = options(root, header="true", max_rows_per_epoch="1", readers="1", **ASIDE)
    trace = drive(Files, given, schema=columns("n int"), rng=random.Random(seed))
    assert trace.ended
    assert sorted(trace.all_rows()["n"].to_pylist()) == [n for n, good in enumerate(kinds) if good for _ in "12"]
    aside = sorted(row.position["file"] for rows in trace.bad_rows.values() for row in rows)
    assert aside == [f"{number}.csv" for number, good in enumerate(kinds) if not good]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"on_bad_file": "quarantine"}, "needs on_bad_row=quarantine"),
        ({**ASIDE, "group": "directory"}, "needs group=file"),
        ({**ASIDE, "on_bad_file": "skip"}, "on_bad_file"),
    ],
    ids=["rows", "folder", "unknown"],
)
def test_bad_options_are_refused(tmp_path: Path, more: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Files(options(tmp_path, **more))
