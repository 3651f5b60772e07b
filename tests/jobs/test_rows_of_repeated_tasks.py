"""How many rows a job says that it has read, when Spark has run tasks of its epochs again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_ext.views.status import read_status
from tests.support.cluster import SPARK_HOME

ROWS = 40_000

DRIVER = f"""
import os
import sys
from pathlib import Path

import psutil
import spark_ext as sx
from pyspark.sql import functions as F
from tests.support.waiting import until

folder = Path(sys.argv[1])
spark = sx.session("x", master="local-cluster[2,1,700]", conf={{"spark.executor.memory": "600m"}})
executors = lambda: len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
until(lambda: executors() == 2, "both executors are there")
killed = str(folder / "killed")


@F.udf("long")
def kills_its_executor(n):
    try:
        os.close(os.open(killed, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return n
    executor = next(one for one in psutil.Process().parents() if "java" in one.name())
    executor.kill()
    return n


rows = spark.readStream.format("datagen").options(uid="in", channels="4", rows={ROWS}).load()
spread = rows.repartition(2, "id").withColumn("m", kills_its_executor("id"))
job = sx.Job(spark, "lab", state=folder / "state")
job.add("q", spread.writeStream.format("files_2pc").options(uid="out", path=str(folder / "out")))
result = job.run()
counted = sum(one["numInputRows"] for one in job.runs[0].in_spark.recentProgress)
print(result.rows, counted > {ROWS}, spark.read.parquet(str(folder / "out")).count())
spark.stop()
"""


@pytest.mark.cluster
@pytest.mark.slow(40, "starts two executors, and kills one")
def test_each_row_counts_once_where_tasks_were_repeated(tmp_path: Path) -> None:
    """Spark repeats those whose shuffle files the executor had, and its own figure counts their rows again."""
    (tmp_path / "driver.py").write_text(DRIVER)
    driver = subprocess.run(
        [sys.executable, str(tmp_path / "driver.py"), str(tmp_path)],
        env={
            **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert driver.returncode == 0, driver.stderr
    assert driver.stdout.split() == [str(ROWS), "True", str(ROWS)]
    assert read_status(str(tmp_path / "state")).query("q").rows == ROWS
