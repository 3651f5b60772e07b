"""The pages that promise to run do run: their Python is taken out and started as a reader would start it.

So are the programs of the gallery. What needs a server is in `tests/docs/test_server_examples.py`.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support import pages
from tests.support.pages import Ran, Runner

ROOT = Path(__file__).parents[2]
ALONE = (
    "end-of-input", "linked-queries", "savepoints", "files", "delta_snapshot", "datagen", "exchange",
    "http_ingest", "delta_2pc", "files_2pc", "exchange_2pc", "control", "control-reference", "control_source",
    "metrics", "observer", "bad-rows", "hourly", "batch", "rules", "write-a-sink",
)  # fmt: skip
"""Pages all of whose blocks run one after the other, from an empty folder."""
GALLERY = tuple(sorted(path.stem for path in pages.GALLERY.glob("*.py") if path.stem not in pages.GALLERY_OF_SERVERS))
HOW_TO = tuple(
    path.stem for path in sorted(pages.HOW_TO.glob("*.md")) if "(generated)" not in path.read_text(encoding="utf-8")
)
"""How-to pages that show no program of the gallery: their blocks run like those of `ALONE`."""
README = pages.python_of((ROOT / "README.md").read_text(encoding="utf-8"))
AGAIN = "-- again --"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("examples")) as runner:
        yield runner


@pytest.fixture(scope="module")
def ran(runner: Runner) -> Callable[[str], Ran]:
    """Runs an example when a test first asks for it, from an empty folder."""
    examples = {name: "\n".join(pages.python_blocks(name)) for name in ALONE}
    examples |= {name: (pages.GALLERY / f"{name}.py").read_text(encoding="utf-8") for name in GALLERY}
    examples |= {name: "\n".join(pages.python_blocks(f"how-to/{name}")) for name in HOW_TO}
    examples["hybrid"] = pages.python_blocks("hybrid")[0]  # its second needs two servers
    return cache(lambda name: runner.run(name, examples[name]))


@pytest.mark.slow(10, "starts a JVM for all of them")
@pytest.mark.parametrize("name", [*ALONE, "hybrid"])
def test_the_examples_that_need_no_server_run_as_printed(ran: Callable[[str], Ran], name: str) -> None:
    assert ran(name).well()


def test_the_example_of_end_of_input_leaves_its_table(ran: Callable[[str], Ran]) -> None:
    assert (ran("end-of-input").well().folder / "out" / "hourly" / "_delta_log").is_dir()


def test_the_job_of_the_command_line_runs(runner: Runner, tmp_path: Path) -> None:
    """`spark-ext run` itself: `tests/test_cli_run.py`."""
    (job,) = pages.python_blocks("cli")
    (tmp_path / "data" / "flights").mkdir(parents=True)
    pq.write_table(pa.table({"dep_delay": [10.0, 61.0, None]}), tmp_path / "data" / "flights" / "a.parquet")
    ran = runner.run("cli", f"{job}\njob(sx.session('late')).run()", given=tmp_path)
    table = DeltaTable(ran.well().folder / "out" / "late" / "flights").to_pyarrow_table()
    assert table.to_pylist() == [{"dep_delay": 61.0}]


def test_the_example_of_pushed_events_makes_an_inbox(runner: Runner) -> None:
    """Its job does not end by itself."""
    ran = runner.run("push", f"{pages.python_blocks('push')[0]}\njob.stop()").well()
    assert (ran.folder / "state" / "orders" / "inboxes" / "orders" / "inbox.json").is_file()


def test_the_first_job_is_the_same_everywhere() -> None:
    (readme,), (index,) = README, pages.python_blocks("index")
    cells = json.loads((ROOT / "examples" / "first_job.ipynb").read_text(encoding="utf-8"))["cells"]
    defined = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"][:2]
    assert readme == index and readme.startswith("\n\n\n".join(defined))


def test_the_first_job_runs_and_runs_again_to_nothing(runner: Runner) -> None:
    job = runner.run("readme", f"{README[0]}\nprint({AGAIN!r})\n{README[0]}").well()
    first, _, again = job.said.partition(AGAIN)
    assert "job 'first' FINISHED: 60,000 rows" in first
    assert "job 'first' FINISHED: 0 rows in 0 epochs" in again
    assert all("|2024-01-01 00:00:00|12000|" in said for said in (first, again))
    table = DeltaTable(job.folder / "out" / "first_job" / "counts").to_pyarrow_table(columns=["rows"])
    assert sum(table["rows"].to_pylist()) == 60_000


def rows(ran: Ran, path: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = DeltaTable(ran.folder / "out" / "gallery" / path).to_pyarrow_table().to_pylist()
    return found


SAID = {
    "explore_in_batch": "2 bad rows, 18 rows in the table; 0 differ from the batch",
    "backfill_then_live": "5000 rows, 5000 of them different",
    "dimension_then_facts": "5000 sales, 5 products that the dimension does not have",
    "cdc_to_upsert": "the first run read 3 changes, the second 3",
    "github_webhooks": "answers [202, 202, 202, 401]; 2 rows",
    "incremental_files": "monday read 2 rows, tuesday 1; the job is SUSPENDED",
    "judge_progress": "slow, of 2 queries",
    "own_source": "a further run reads 0 rows",
    "stripe_webhooks": "answers [202, 202, 202, 202, 401]; 2 rows",
    "websocket_feed": "200 rows, 200 of them different",
    "windows_to_the_end": "with 1000 readings; 0 rows are left in the state",
}


@pytest.mark.parametrize("name", GALLERY)
def test_each_program_of_the_gallery_runs(ran: Callable[[str], Ran], name: str) -> None:
    said = ran(name).well().said
    assert said and SAID.get(name, "") in said
    assert all(printed in said for printed in pages.printed_of(name))


def test_incremental_files_reads_what_is_new(ran: Callable[[str], Ran]) -> None:
    assert {row["id"] for row in rows(ran("incremental_files").well(), "incremental_files/orders")} == {1, 2, 3}


def test_cdc_to_upsert_has_what_the_table_has(ran: Callable[[str], Ran]) -> None:
    found = rows(ran("cdc_to_upsert").well(), "cdc_to_upsert/copy")
    assert {(row["item"], row["n"]) for row in found} == {("apple", 4), ("plum", 9)}


def test_reload_every_hour_has_one_version_in_each_epoch(ran: Callable[[str], Ran]) -> None:
    found = ran("reload_every_hour").well()
    payments = rows(found, "reload_every_hour/payments")
    assert {(row["hour"], row["rate"]) for row in payments} == {(0, 1.0), (1, 1.1), (2, 1.2)}
    assert [line.split()[:2] for line in found.said.splitlines()[:2]] == [["version", "1"], ["version", "2"]]


def test_several_outputs_agree(ran: Callable[[str], Ran]) -> None:
    found = ran("several_outputs").well()
    clean = rows(found, "several_outputs/rows")
    assert len({row["id"] for row in clean}) == len(clean) > 3_000
    high = {row["id"] for row in clean if float(str(row["value"])) > 0.9}
    assert {row["id"] for row in rows(found, "several_outputs/high")} == high
    alarms = [row for row in clean if float(str(row["value"])) > 0.99]
    assert f"{len(clean)} rows, {len(alarms)} alarms, {len(high)} high values" in found.said


def test_own_source_is_read_once(ran: Callable[[str], Ran]) -> None:
    found = rows(ran("own_source").well(), "own_source/table")
    assert {row["text"] for row in found} == {"buy tea", "call the bank", "fix the bicycle"}


@pytest.mark.parametrize("name", [name for name in HOW_TO if name != "test-a-job"])
def test_the_programs_of_how_to_pages_print_what_the_page_says(ran: Callable[[str], Ran], name: str) -> None:
    (printed,) = pages.printed(f"how-to/{name}")
    assert printed in ran(name).well().said


def test_the_test_of_a_job_passes(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(pages.python_blocks("how-to/test-a-job")[0], encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    code = (
        "import pytest\nassert pytest.main(['-q', '-p', 'no:cacheprovider', '-c', 'pytest.ini', 'test_orders.py']) == 0"
    )
    (printed,) = pages.printed("how-to/test-a-job")
    assert printed.strip() in runner.run("test-a-job", code, given=tmp_path).well().said


def test_write_a_source_runs_as_printed(runner: Runner, tmp_path: Path) -> None:
    """The last one: it stops the session."""
    source, trial = pages.python_blocks("write-a-source")
    assert "1000 rows in 4 epochs" in runner.run("write-a-source", source).well().said
    (tmp_path / "shop.py").write_text(source, encoding="utf-8")
    assert "20 runs agree" in pages.run(tmp_path, trial, PYTHONPATH=str(tmp_path))


@pytest.mark.slow(20, "runs all of the contract kit, whose drivers are processes, on the page's sink")
def test_the_kit_tries_the_sink_and_the_source_as_printed(tmp_path: Path) -> None:
    sink, _ = pages.python_blocks("write-a-sink")
    sink_test, source_test = pages.python_blocks("testing")
    (tmp_path / "sqlite_sink.py").write_text(sink, encoding="utf-8")
    (tmp_path / "test_sqlite_sink.py").write_text(sink_test, encoding="utf-8")
    (tmp_path / "shop.py").write_text(pages.python_blocks("write-a-source")[0], encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(source_test, encoding="utf-8")
    tests = "import pytest\nraise SystemExit(pytest.main(['-q', '-p', 'no:cacheprovider', '.']))\n"
    said = pages.run(tmp_path, tests, PYTHONPATH=f"{tmp_path}:{ROOT}")
    # What is left out is about rows that a sink puts aside, which this one does not.
    assert " passed" in said and " failed" not in said and " error" not in said
