"""The pages that promise to run do run: their Python is taken out and started as a reader would start it.

Those that need a server are in `tests/docs/test_server_examples.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_ext.script import load_function
from tests.support import pages
from tests.support.pages import Ran

ROOT = Path(__file__).parents[2]
ALONE = (
    "index",
    "end-of-input",
    "linked-queries",
    "savepoints",
    "files",
    "delta_snapshot",
    "datagen",
    "exchange",
    "delta_2pc",
    "files_2pc",
    "exchange_2pc",
    "control",
    "control_source",
    "metrics",
    "observer",
    "bad-rows",
    "hourly",
)
"""Pages all of whose blocks run one after the other, from an empty folder."""
AGAIN = "-- again --"


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Two months of the README's flights."""
    example = sys.modules[load_function(ROOT / "examples" / "flights.py", "job").__module__]
    whole: pd.DataFrame = example.package_flights()
    return whole[whole["month"] <= 2]


@pytest.fixture(scope="module")
def ran(flights: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All of them, in one process."""
    folder = tmp_path_factory.mktemp("examples")
    example = sys.modules[load_function(ROOT / "examples" / "flights.py", "job").__module__]
    (folder / "data").mkdir()
    (folder / "data" / "data").mkdir()
    example.write_months(flights, folder / "data" / "data" / "flights")
    examples = {name: "\n".join(pages.python_blocks(name)) for name in ALONE}
    examples["hybrid"] = pages.python_blocks("hybrid")[0]  # its second needs two servers
    first, readme = pages.python_of((ROOT / "README.md").read_text(encoding="utf-8"))
    examples["readme-first"] = first  # from an empty folder
    examples["readme"] = f"{readme}\nprint({AGAIN!r})\n{readme}"
    (job,) = pages.python_blocks("cli")  # `spark-ext run` itself: tests/test_cli_run.py
    examples["cli"] = f"{job}\njob(sx.session('late')).run()"
    (folder / "late" / "data" / "flights").mkdir(parents=True)
    pq.write_table(pa.table({"dep_delay": [10.0, 61.0, None]}), folder / "late" / "data" / "flights" / "a.parquet")
    examples["write-a-source"] = pages.python_blocks("write-a-source")[0]  # the last: it stops its session
    (folder / "all").mkdir()
    return pages.run_each(folder / "all", examples, given={"readme": folder / "data", "cli": folder / "late"})


@pytest.mark.slow(120, "runs the examples of eighteen pages")
@pytest.mark.parametrize("name", [*ALONE, "hybrid"])
def test_the_examples_that_need_no_server_run_as_printed(ran: dict[str, Ran], name: str) -> None:
    assert ran[name].well()


def test_the_example_of_end_of_input_leaves_its_table(ran: dict[str, Ran]) -> None:
    assert (ran["end-of-input"].well().folder / "out" / "hourly" / "_delta_log").is_dir()


def test_the_job_of_the_command_line_runs(ran: dict[str, Ran]) -> None:
    table = DeltaTable(ran["cli"].well().folder / "out" / "late" / "flights").to_pyarrow_table()
    assert table.to_pylist() == [{"dep_delay": 61.0}]


def test_the_readmes_first_job_ends_and_shows_its_table(ran: dict[str, Ran]) -> None:
    job = ran["readme-first"].well()
    assert "job 'first' FINISHED: 1,000,000 rows" in job.said
    assert "|  0|" in job.said.partition("|key|count|")[2]
    assert DeltaTable(job.folder / "first" / "table").to_pyarrow_table(columns=["id"]).num_rows == 1_000_000


def test_the_readmes_example_runs_and_runs_again_to_nothing(ran: dict[str, Ran], flights: pd.DataFrame) -> None:
    first, _, again = ran["readme"].well().said.partition(AGAIN)
    assert "job 'delays' FINISHED" in first and "0 rows in 0 epochs" not in first
    assert "job 'delays' FINISHED" in again and "0 rows in 0 epochs" in again
    daily = DeltaTable(ran["readme"].folder / "out" / "delays" / "daily").to_pandas()
    expected = flights.groupby([flights["departure"].dt.date.rename("day"), "carrier"])["dep_delay"].agg(
        flights="size", mean_dep_delay="mean"
    )
    pd.testing.assert_frame_equal(
        daily.sort_values(["day", "carrier"], ignore_index=True), expected.reset_index(), check_dtype=False
    )


def test_write_a_source_runs_as_printed(ran: dict[str, Ran], tmp_path: Path) -> None:
    source, trial = pages.python_blocks("write-a-source")
    assert "1000 rows in 4 epochs" in ran["write-a-source"].well().said
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    assert "20 runs agree" in pages.run(tmp_path, trial, PYTHONPATH=str(tmp_path))


@pytest.mark.slow(20, "runs all of the contract kit, whose drivers are processes, on the page's sink")
def test_the_kit_tries_the_sink_and_the_source_as_printed(tmp_path: Path) -> None:
    sink, sink_test, source_test = pages.python_blocks("testing")
    (tmp_path / "sqlite_sink.py").write_text(sink, encoding="utf-8")
    (tmp_path / "test_sqlite_sink.py").write_text(sink_test, encoding="utf-8")
    (tmp_path / "shop.py").write_text(pages.python_blocks("write-a-source")[0], encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(source_test, encoding="utf-8")
    tests = "import pytest\nraise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', '.']))\n"
    said = pages.run(tmp_path, tests, PYTHONPATH=f"{tmp_path}:{ROOT}")
    # What is left out is about rows that a sink puts aside, which this one does not.
    assert " passed" in said and " failed" not in said and " error" not in said
