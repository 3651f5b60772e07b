"""The programs of the gallery are on its page, and say what they need; one of them runs in an object store.

The others run in `tests/docs/test_examples.py` and `tests/docs/test_server_examples.py`, in the processes of the pages.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.servers.object_store import Bucket
from tests.support import pages


def test_the_page_shows_each_program_and_no_other() -> None:
    page = pages.read("gallery")
    programs = {path.stem for path in pages.GALLERY.glob("*.py")}
    assert set(re.findall(r"\]\(\.\./examples/gallery/(\w+)\.py\)", page)) == programs
    assert programs >= set(pages.GALLERY_OF_SERVERS)


def test_kafka_to_postgres_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA", "POSTGRES_DSN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="set KAFKA and POSTGRES_DSN"):
        runpy.run_path(str(pages.GALLERY / "kafka_to_postgres.py"), run_name="__main__")


def test_object_store_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BUCKET", raising=False)
    with pytest.raises(AssertionError, match="set BUCKET"):
        runpy.run_path(str(pages.GALLERY / "object_store.py"), run_name="__main__")


@pytest.mark.slow(40, "a Spark session of its own, with the jars of S3; starts four jobs in a store")
def test_object_store_keeps_everything_in_the_store(bucket: Bucket, tmp_path: Path) -> None:
    code = (pages.GALLERY / "object_store.py").read_text(encoding="utf-8")
    said = pages.run(tmp_path, code, BUCKET=f"{bucket.uri}/gallery", **bucket.environment)
    assert "Monday 2 rows, Tuesday 2; the trial read 2" in said
    for table, rows in (("main/orders", 4), ("trial/orders", 2), ("main/state/bad_rows/table", 1)):
        assert f"{table} {rows}\n" in said
    assert [path.name for path in tmp_path.iterdir()] == ["page.py"], "something was written to the disk"
    assert bucket.keys("gallery/savepoints/monday/")
