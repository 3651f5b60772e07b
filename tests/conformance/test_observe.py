"""Conformance, "Failures, time, progress": what watching costs. One test per line, named after it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_ext.spark.session.spark_home import home_without_zip

PLAIN_QUERY = """
import json, os, threading
from pathlib import Path
import psutil

def bare():
    return psutil.Process().num_threads(), threading.active_count(), [str(path) for path in Path().rglob("*")]

without = bare()
import spark_ext as sx
imported = bare()
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.local.dir", "spark-scratch")
    .config("spark.sql.warehouse.dir", "spark-scratch/warehouse")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.codegen.wholeStage", "false")
    .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    .getOrCreate()
)
def looked():
    files = {str(path) for path in Path().rglob("*")}
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": sorted(file for file in files if not file.startswith("spark-scratch")),
    }

before = looked()
from spark_ext.spark.session import registry
sx.register(spark, require_delta=False)
registered = looked()

stream = spark.readStream.format("datagen").option("uid", "numbers").option("rows", "100").load()
query = (
    stream.writeStream.format("delta_2pc")
    .option("uid", "table")
    .option("path", "out")
    .option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
ended = looked()
folder = registry.folder_of(spark, "")
print("FACTS", json.dumps({"imported": imported == without, "before": before, "registered": registered,
    "ended": ended, "registry": str(folder),
    "registry_is_there": folder.exists(), "in_tmp": str(folder).startswith(os.environ["TMPDIR"])}))
spark.stop()
"""


def run(program: str, folder: Path) -> str:
    """A program in a process, working folder and folder for temporary files of its own."""
    (folder / "tmp").mkdir()
    found = home_without_zip()
    home = {"SPARK_HOME": found} if found else {}  # as `spark_ext.session` does
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "PYSPARK_PYTHON": sys.executable, **home},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.core
def test_l7_with_everything_off_no_thread_no_file(tmp_path: Path) -> None:
    line = next(text for text in run(PLAIN_QUERY, tmp_path).splitlines() if text.startswith("FACTS "))
    facts: dict[str, Any] = json.loads(line.removeprefix("FACTS "))
    assert facts["imported"], "the import alone starts no thread and makes no file"
    assert facts["registered"] == facts["before"]
    assert facts["in_tmp"] and not facts["registry_is_there"], facts["registry"]
    assert facts["ended"]["threads"] == facts["before"]["threads"]
    made = set(facts["ended"]["files"]) - set(facts["before"]["files"])
    assert {name.partition("/")[0] for name in made} == {"out", "checkpoint"}
    tables = {name.rpartition("/")[0] for name in made if name.endswith("/_delta_log")}
    assert tables == {"out"}, "one table, the query's own"
