"""Webhooks of GitHub into a table, each delivery once, also when it is sent again.

A gateway checks the signature, keeps the delivery and answers; the job reads what it keeps. Here the deliveries are made
by this program; point a webhook of yours at the gateway instead (its content type is application/json), and run
`redeliver_github.py` every few minutes: GitHub tries each delivery once.

    python examples/gallery/github_webhooks.py
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_ext as sx

OUT = Path("out/gallery/github_webhooks")
SECRET = os.environ.setdefault("GITHUB_WEBHOOK_SECRET", "as it was given to GitHub")


def job(spark: SparkSession) -> sx.Job:
    made = sx.Job(spark, "webhooks", state=OUT / "state")
    inbox = made.inbox("github", scheme="github", secrets=["env:GITHUB_WEBHOOK_SECRET"])
    body = F.col("body").cast("string")
    events = inbox.read("deliveries").select(
        F.col("event_id").alias("delivery"),
        F.col("headers")["x-github-event"].alias("event"),
        F.get_json_object(body, "$.repository.full_name").alias("repository"),
    )
    table = events.writeStream.format("delta_2pc").option("uid", "events-table").option("path", str(OUT / "events"))
    return made.add("load", table)


def deliver(url: str, delivery: str, event: str, secret: str = SECRET) -> int:
    """Send what GitHub would send; returns the status of the answer."""
    body = json.dumps({"repository": {"full_name": "octo/orders"}}).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": event,
        "X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(),
    }
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("github-webhooks")
    running = job(spark)
    running.start()
    with running.serve_inbox("github") as gateway:
        answers = [deliver(gateway.url, f"delivery-{n}", "push") for n in (1, 2, 2)]
        answers.append(deliver(gateway.url, "delivery-3", "push", secret="a guess"))
        result = running.drain()

    print(f"answers {answers}; {result.rows} rows")
    spark.read.format("delta").load(str(OUT / "events")).orderBy("delivery").show(truncate=False)


if __name__ == "__main__":
    main()
