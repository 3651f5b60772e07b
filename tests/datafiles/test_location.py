"""Writing to a place on an object store, through the store that needs no service."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

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
