"""The programs of the gallery are on its page, and say what they need.

They run in `tests/docs/test_examples.py` and `tests/docs/test_server_examples.py`, in the processes of the pages.
"""

from __future__ import annotations

import re
import runpy

import pytest

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
