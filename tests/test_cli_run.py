"""`spark-ext run`, as a process: a file that defines a job is run to its end, or refused."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_ext import cli
from spark_ext.jobs.job import Job
from spark_ext.script import load_function, make_job
from tests.support import cheap_jvm
from tests.support.processes import Tree
from tests.support.scripts import scripts_undone
from tests.support.waiting import until


def spark_ext(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spark_ext", *map(str, arguments)], capture_output=True, text=True, cwd=cwd,
        env={**cheap_jvm.environment(), "COLUMNS": "160", **environment}, check=False,
    )  # fmt: skip


SCRIPT = """
from dataclasses import dataclass

import spark_ext as sx
from neighbour import OUT
from pyspark.sql import functions as F


@dataclass
class Limit:
    least: int = 5


@F.udf("long")
def twice(n):
    return 2 * n if n >= Limit().least else None


def job(given, data="data"):
    assert spark is given  # a notebook's own session
    rows = spark.readStream.format("files").option("uid", "rows").option("path", data).load()
    writer = rows.select(twice("n").alias("n")).where("n is not null").writeStream.format("delta_2pc")
    return sx.Job(spark, "script", state="state").add("q", writer.option("uid", "out").option("path", OUT))


def failing(spark):
    return job(spark, "broken")


@F.udf("long")
def none_is_left(n):
    return 1 // (n - n)


def dividing(spark):
    rows = spark.readStream.format("files").option("uid", "rows").option("path", "data").load()
    writer = rows.select(none_is_left("n").alias("n")).writeStream.format("delta_2pc")
    return sx.Job(spark, "divides", state="state").add("q", writer.option("uid", "out").option("path", OUT))


def wrong(spark):
    return "a job"


def raising(spark):
    raise RuntimeError("user code")


if __name__ == "__main__":
    raise SystemExit("ran as a script")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return written(tmp_path)


def written(tmp_path: Path) -> Path:
    (tmp_path / "my-job.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("OUT = 'out'\n")
    for folder in ("data", "broken"):
        (tmp_path / folder).mkdir()
    pq.write_table(pa.table({"n": list(range(10))}), tmp_path / "data" / "a.parquet")
    whole = (tmp_path / "data" / "a.parquet").read_bytes()
    (tmp_path / "broken" / "a.parquet").write_bytes(whole)
    (tmp_path / "broken" / "b.parquet").write_bytes(whole[: len(whole) // 2])
    return tmp_path / "my-job.py"


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return spark_ext("run", script.name, *arguments, "--master", "local[1]", cwd=script.parent)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A file whose job has run to its end, and what was said."""
    script = written(tmp_path_factory.mktemp("first"))
    return script, run(script, "--json")


@pytest.mark.core
def test_run_to_the_end(first: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    script, done = first
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert said[0] == f"loading {script.name}" and "starting Spark" in said and "starting job 'script'" in said
    assert "incubator" not in done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["state"], result["finished"], result["rows"]) == ("FINISHED", True, 10)
    assert sorted(DeltaTable(script.parent / "out").to_pyarrow_table()["n"].to_pylist()) == [10, 12, 14, 16, 18]


def test_run_again_without_json(first: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    script, _ = first
    second = run(script)
    assert second.returncode == 0, second.stderr
    assert "job 'script' FINISHED: 0 rows in 0 epochs" in second.stdout
    assert "q: FINISHED in an earlier run" in second.stdout
    assert "script FINISHED" in spark_ext("status", "state", cwd=script.parent).stdout


def test_a_failed_job_is_reported_without_a_traceback(script: Path) -> None:
    done = run(script, "--function", "failing", "--no-progress")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "loading" not in done.stderr
    assert "b.parquet" in done.stderr and "do: " in done.stderr


@pytest.mark.parametrize("moment", ["starting Spark", "building the job"])
def test_ctrl_c_before_the_job_runs_is_said_and_leaves_no_process(script: Path, moment: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spark_ext", "run", script.name, "--master", "local[1]"]
    with Tree(command, tmp_path / "said", cheap_jvm.environment(), cwd=script.parent) as tree:
        until(lambda: moment in tree.text() and any(one.is_jvm for one in tree.members()), moment)
        os.kill(tree.pid, signal.SIGINT)
        assert tree.wait(60) == 3, tree.text()
        assert tree.text().splitlines()[-1].startswith("interrupted at once; what is committed stays")
        assert "Traceback" not in tree.text()
        until(lambda: not tree.members(), "all processes have ended")


def test_a_failure_of_a_function_is_said_once_under_its_class_with_its_line(script: Path) -> None:
    done = run(script, "--function", "dividing")
    (said,) = [text for text in done.stderr.splitlines() if "ZeroDivisionError" in text]
    line = 1 + SCRIPT.splitlines().index("    return 1 // (n - n)")
    assert said == f"[USER_CODE] {script}, line {line}, in none_is_left: ZeroDivisionError: " + said.rpartition(": ")[2]
    assert done.returncode == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("file", "said"),
    [(name, f"the file '{name}' does not exist") for name in ("missing.py", "data")]
    + [("notes.txt", "'notes.txt' is not a Python file")],
)
def test_a_file_that_is_not_python_is_refused_before_spark(script: Path, file: str, said: str) -> None:
    (script.parent / "notes.txt").write_text("notes")
    done = spark_ext("run", file, cwd=script.parent, JAVA_HOME="/nowhere")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


Defined = Callable[[str], tuple[Any, str]]


@pytest.fixture
def defined(script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Defined]:
    """Exit code and errors of a command that loads the function of the file."""

    def run(function: str) -> tuple[Any, str]:
        monkeypatch.setattr(cli, "app", lambda: defined_job(script, function))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, capsys.readouterr().err

    with scripts_undone():
        yield run


@pytest.mark.parametrize(
    ("function", "said"), [("missing", "define `def missing(spark) -> Job`"), ("wrong", "it returned str, not a Job")]
)
def test_a_file_that_does_not_define_a_job(defined: Defined, function: str, said: str) -> None:
    code, shown = defined(function)
    assert code == 2 and said in shown and "Traceback" not in shown


def test_an_error_of_the_users_own_code_shows_the_users_lines(script: Path, defined: Defined) -> None:
    """The traceback begins in the user's file, and the exit code is Python's own."""
    code, shown = defined("raising")
    assert code == cli.FAILED == 1
    assert "RuntimeError: user code" in shown and f'File "{script}"' in shown


def defined_job(script: Path, function: str) -> Job:
    """What `run` does with a file, without its session."""
    script.write_text(SCRIPT.replace('@F.udf("long")\n', ""))
    return make_job(load_function(script, function), cast("SparkSession", None), script.name)


@pytest.mark.slow(20, "two processes with a session each")
def test_a_plan_says_by_its_exit_code_whether_a_start_would_be_refused(script: Path, tmp_path: Path) -> None:
    done = spark_ext("plan", script, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["accepted"] and [query["action"] for query in plan["queries"]] == ["begins"]
    assert not (tmp_path / "state").exists() and not (tmp_path / "out").exists()
    (tmp_path / "state" / "queries" / "q" / "checkpoint" / "commits").mkdir(parents=True)
    (tmp_path / "state" / "queries" / "q" / "checkpoint" / "commits" / "0").touch()
    done = spark_ext("plan", script, cwd=tmp_path)
    assert done.returncode == 1 and "would be refused: 1 objection" in done.stdout, done.stderr
    assert "there are Spark checkpoints of earlier runs, but no ledger" in done.stdout
