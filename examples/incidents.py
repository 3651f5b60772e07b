# Databricks notebook source
# MAGIC %md
# MAGIC # Incidents, and who is notified of them
# MAGIC
# MAGIC A job looks prices up at a server that is down at first: its query fails, and is restarted until the server is there. A
# MAGIC check of yours finds that prices are late, and reports an incident of a type of its own. Each step is sent to an HTTP
# MAGIC endpoint, signed, and each is in the ledger. At the end the job leaves the stacks of all its processes.
# MAGIC
# MAGIC As a script: `python examples/incidents.py [--fresh] [--out DIR]`. It needs the packages of
# MAGIC `pip install 'spark-ext[spark,webhook]'`.

# COMMAND ----------

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from rich.console import Console

import spark_ext as sx

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUT = "out/incidents"
SECRET = "a-secret-of-two-parties"
PATIENCE = 120.0
"""How long each step is waited for, s."""

# COMMAND ----------

# MAGIC %md
# MAGIC ## What is declared
# MAGIC
# MAGIC A type of your own, a listener for everything that is a warning or worse, and an alert.

# COMMAND ----------

DECLARED = """
types:
  - name: late_prices
    severity: WARNING
    description: Prices are older than an hour.
    resolved: report
listeners:
  - use: webhook
    severity: WARNING
    options: {{url: "{url}", secret: "{secret}"}}
alerts:
  - rule: availability below 99 % over 1 day
    labels: {{type: [SYSTEM, NETWORK]}}
"""

# COMMAND ----------

# MAGIC %md
# MAGIC ## The job
# MAGIC
# MAGIC The function fails as one does whose server is down: until a file is there.

# COMMAND ----------


def job(spark: SparkSession, out: str = OUT, incidents: str | None = None) -> sx.Job:
    target = Path(out).resolve()
    server = str(target / "server-is-up")

    @F.udf("double")
    def price(value: float) -> float:
        if not Path(server).exists():
            raise ConnectionRefusedError("the server of prices is down")
        return 100 * value

    rows = spark.readStream.format("datagen").option("uid", "orders").option("rows_per_second", 200).load()
    orders = rows.select("id", price("value").alias("price"))
    made = sx.Job(
        spark, "shop", state=target / "state", incidents=incidents, restart_attempts=100, restart_backoff="500 ms"
    )
    writer = orders.writeStream.format("delta_2pc").option("uid", "orders-table").option("path", str(target / "orders"))
    return made.add("load", writer)


# COMMAND ----------

# MAGIC %md
# MAGIC ## The endpoint
# MAGIC
# MAGIC It checks the signature as any receiver would.

# COMMAND ----------


@contextmanager
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An HTTP server on loopback; gives its URL, and what it gets."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            signature = dict(part.split("=", 1) for part in self.headers["Spark-Ext-Signature"].split(","))
            code = hmac.new(SECRET.encode(), f"{signature['t']}.".encode() + body, hashlib.sha256).hexdigest()
            genuine = hmac.compare_digest(code, signature["v1"])
            if genuine:
                got.append(json.loads(body))
            self.send_response(204 if genuine else 403)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", got
    finally:
        server.shutdown()
        server.server_close()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    by = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > by:
            raise TimeoutError(what)
        time.sleep(0.1)


# COMMAND ----------

# MAGIC %md
# MAGIC ## What happens

# COMMAND ----------


def observe(running: sx.Job, got: list[dict[str, Any]], server: Path) -> None:
    """The server comes back once the job has noticed that it is down; then prices are late, and are there again."""

    def notified(type_: str, state: str) -> bool:
        return any(one["incident"]["type"] == type_ and one["new"] == state for one in got)

    until(lambda: notified("failure", "OPEN"), "a notification of the failure")
    server.touch()
    until(lambda: notified("failure", "RESOLVED"), "the next epoch, which resolves it")
    found = running.report_incident("late_prices", "the newest price is 75 min old", query="load")
    again = running.report_incident("late_prices", "the newest price is 76 min old", query="load")
    assert found == again, "it is the same incident, which is counted"
    running.resolve_incident(found, "prices are there")
    # What all processes do now: of a stall, or a lack of memory, the setting `dumps` keeps this by itself.
    running.dump("prices were late")
    until(lambda: notified("late_prices", "RESOLVED"), "a notification of its end")


def show(got: list[dict[str, Any]], console: Console) -> None:
    for one in got:
        incident = one["incident"]
        text = f"{incident['severity']:8} {incident['type']:12} {one['new']:9} {one['count']} x  "
        console.print(
            text + (one["cause"] or incident["what"].partition("\n")[0])[:110],
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


# COMMAND ----------

# MAGIC %md
# MAGIC ## Run it
# MAGIC
# MAGIC Then look at it with `spark-ext incidents out/incidents/state` and `spark-ext timeline out/incidents/state`, at the stacks in
# MAGIC `out/incidents/state/dumps`, and ask whether it is well: `spark-ext check out/incidents/state --availability 99`.

# COMMAND ----------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Incidents of a job, and who is notified of them.")
    parser.add_argument("--fresh", action="store_true", help="delete the outputs and the job's state first")
    parser.add_argument("--out", default=OUT, help=f"folder of the outputs and the state (default: {OUT})")
    return parser.parse_args([] if "get_ipython" in globals() else None)


def main() -> int:
    options, console = arguments(), Console()
    out = Path(options.out).resolve()
    if options.fresh:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    server = out / "server-is-up"
    server.unlink(missing_ok=True)
    with endpoint() as (url, got):
        declared = out / "incidents.yaml"
        declared.write_text(DECLARED.format(url=url, secret=SECRET))
        try:
            running = job(sx.session("incidents"), str(out), str(declared)).start()
            try:
                observe(running, got, server)
            finally:
                result = running.stop()
        except sx.errors.SparkExtError as problem:
            Console(stderr=True).print(str(problem), markup=False, highlight=False, soft_wrap=True)
            return 1
    show(got, console)
    console.print(str(result), markup=False, highlight=False)
    return 0


if __name__ == "__main__":
    code = main()
    if "get_ipython" not in globals():
        sys.exit(code)
