"""Writing to a place on an object store, and deleting it, through the store that needs no service."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from spark_ext.datafiles.location import Location


def test_whatever_has_the_form_of_a_buffer_can_be_written(tmp_path: Path) -> None:
    """The store's own stream takes nothing but bytes, and pyarrow hands it buffers: no savepoint could be written."""
    place, block = Location(f"file://{tmp_path}"), b"0123456789" * 300_000
    with place.create("sub/plain") as out:
        out.write(b"a")
        out.write(memoryview(block))
        out.write(pa.py_buffer(b"z"))
    assert place.read("sub/plain") == b"a" + block + b"z"
    rows = pa.table({"n": list(range(300_000))})
    with place.create("rows.arrow") as out, pa.ipc.new_file(out, rows.schema) as file:
        file.write_table(rows)
    with place.open("rows.arrow") as source, pa.ipc.open_file(source) as found:
        assert found.read_all() == rows


@pytest.mark.parametrize("step", range(9))
def test_delete_all_of_a_table_can_be_interrupted_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Its log is deleted too, and until then who opens the table finds it whole, or none."""
    table = tmp_path / "x"
    for number in range(3):
        write_deltalake(table, pa.table({"n": [number]}), mode="append")
    DeltaTable(table).create_checkpoint()
    place = Location(f"file://{tmp_path}")
    deleted: list[str] = []

    def delete(location: Location, name: str) -> None:
        if len(deleted) == step:
            raise OSError("the store does not answer")
        deleted.append(name)
        (tmp_path / name).unlink()

    with monkeypatch.context() as broken:
        broken.setattr(Location, "delete", delete)
        if step < 8:
            with pytest.raises(OSError, match="does not answer"):
                place.delete_all()
            assert DeltaTable(table).version() <= 2
        else:
            place.delete_all()
    place.delete_all()
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_files_are_those_without_the_log(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"n": [1]}))
    names = list(Location(f"file://{tmp_path}").files())
    assert len(names) == 1 and names[0].endswith(".parquet")
