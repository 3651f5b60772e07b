"""`python foreign_session.py FOLDER`: a session as anybody makes it, whose workers leave no notes, and its Observers.

Prints a line of JSON for each way in which a function of a query is held: what the incident says.
"""

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.listeners import Observer
from spark_ext.spark.watching.local_workers import NOT_INSTALLED, PySpy


def held_by_a_lock() -> None:
    threading.Event().wait()


def held_in_c() -> None:
    ctypes.PyDLL(None).sleep(600)


def main(folder: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    as_it_is = PySpy.here()
    for name, held, reader in (
        ("without", held_by_a_lock, PySpy("", NOT_INSTALLED)),
        ("lock", held_by_a_lock, as_it_is),
        ("c", held_in_c, as_it_is),
    ):
        PySpy.here = staticmethod(lambda reader=reader: reader)  # type: ignore[method-assign]
        print(json.dumps({"case": name, **found(spark, folder / name, held)}), flush=True)
    spark.stop()


def found(spark: SparkSession, folder: Path, held: Any) -> dict[str, Any]:
    folder.mkdir()
    flag = str(folder / "flag")

    @F.udf("long")
    def waits(n: int) -> int:
        if Path(flag).exists():
            held()
        return n

    observer = Observer(state=folder / "state", name="nightly", stall_after="2500 ms")
    spark.streams.addListener(observer)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().select(waits("value"))
    query = rows.writeStream.format("noop").trigger(processingTime="100 milliseconds").start()
    wait(lambda: len(query.recentProgress) >= 2)
    Path(flag).touch()
    (incident,) = wait(lambda: incidents(folder / "state"))
    query.stop()
    spark.streams.removeListener(observer)
    return {"what": incident.what, "labels": incident.labels, "stacks": incident.evidence["stacks"]}


def incidents(state: Path) -> list[IncidentRow]:
    return Ledger(str(state)).table(IncidentRow).rows([("type", "=", "stall")])


def wait(condition: Any) -> Any:
    by = time.monotonic() + 90
    while not (value := condition()):
        if time.monotonic() > by:
            raise TimeoutError("what is waited for has not come")
        time.sleep(0.1)
    return value


if __name__ == "__main__":
    main(Path(sys.argv[1]))
