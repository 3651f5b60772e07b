"""The pages that promise to run do run: their Python is taken out and started as a reader would start it."""

from __future__ import annotations

from pathlib import Path

from tests.support import pages

ROOT = str(Path(__file__).parents[2])


def test_write_a_source_runs_as_printed(tmp_path: Path) -> None:
    source, trial = pages.python_blocks("write-a-source")
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    assert "20 runs agree" in pages.run(tmp_path, trial, PYTHONPATH=str(tmp_path))
    assert "1000 rows in 4 epochs" in pages.run(tmp_path, source)


def test_the_kit_tries_the_sink_and_the_source_as_printed(tmp_path: Path) -> None:
    sink, sink_test, source_test = pages.python_blocks("testing")
    (tmp_path / "sqlite_sink.py").write_text(sink, encoding="utf-8")
    (tmp_path / "test_sqlite_sink.py").write_text(sink_test, encoding="utf-8")
    (tmp_path / "shop.py").write_text(pages.python_blocks("write-a-source")[0], encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(source_test, encoding="utf-8")
    tests = "import pytest\nraise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', '.']))\n"
    said = pages.run(tmp_path, tests, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert " passed" in said and " skipped" not in said


def test_the_examples_that_need_no_server_run_as_printed(tmp_path: Path) -> None:
    """All of a page one after the other, from an empty folder; of `hybrid` the first, its second needs two servers."""
    names = ("end-of-input", "files", "delta_snapshot", "datagen", "delta_2pc", "files_2pc")
    examples = {name: "\n".join(pages.python_blocks(name)) for name in names}
    examples["hybrid"] = pages.python_blocks("hybrid")[0]
    examples["end-of-input"] += "\nfrom pathlib import Path\nassert Path('out/hourly/_delta_log').is_dir()\n"
    pages.run_each(tmp_path, examples)
