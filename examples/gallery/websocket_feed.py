"""A feed over a WebSocket into a table: each message once, though the connection breaks off.

A gateway connects to the feed, subscribes, and keeps each message; after a break it asks for what follows the last one
that is durable. Here the feed is a server of this program, which hangs up after a hundred messages and then repeats
five of them.

    python examples/gallery/websocket_feed.py

It needs `pip install 'spark-ext[ingest]'`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession
from websockets.sync.server import ServerConnection, serve

import spark_ext as sx

OUT = Path("out/gallery/websocket_feed")
PRICES = [json.dumps({"id": n, "symbol": "ABC", "price": 100 + n % 7}) for n in range(200)]


def job(spark: SparkSession) -> sx.Job:
    made = sx.Job(spark, "prices", state=OUT / "state")
    inbox = made.inbox("prices", schema="id long, symbol string, price double", scheme="pointer", pointer="/id")
    prices = (
        inbox.read("feed").writeStream.format("delta_2pc").option("uid", "table").option("path", str(OUT / "prices"))
    )
    return made.add("load", prices)


def connect(url: str) -> subprocess.Popen[bytes]:
    options = {
        "--url": url,
        "--subscribe": '{"subscribe": "ABC"}',
        "--cursor": "/id",
        "--resume": '{"subscribe": "ABC", "after": "{cursor}"}',
    }
    given = [part for option in options.items() for part in option]
    return subprocess.Popen(
        [sys.executable, "-m", "spark_ext", "ingest", "connect", str(OUT / "state"), "prices", *given]
    )


def feed(connection: ServerConnection) -> None:
    """What the server does for each connection: a subscription first, then prices."""
    after = json.loads(connection.recv()).get("after")
    for price in PRICES[:100] if after is None else PRICES[max(0, int(after) - 4) :]:
        connection.send(price)
    if after is not None:
        connection.recv()  # until the gateway leaves


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("websocket-feed")
    running = job(spark)
    running.start()
    with serve(feed, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        gateway = connect(f"ws://127.0.0.1:{server.socket.getsockname()[1]}")
        while sum(query.rows for query in running.snapshot().queries) < len(PRICES) and gateway.poll() is None:
            time.sleep(0.2)
        result = running.drain()
        gateway.wait()

    table = spark.read.format("delta").load(str(OUT / "prices"))
    print(f"{result.rows} rows, {table.select('id').distinct().count()} of them different")


if __name__ == "__main__":
    main()
