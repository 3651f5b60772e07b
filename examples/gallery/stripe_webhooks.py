"""Webhooks of Stripe into columns of a table, each event once, while its secret is being replaced.

The identity of an event is the `id` in its body, so a retry of Stripe, which may come three days later, is known. Events
that do not have the declared columns are put aside as bad rows. Here the events are made by this program.

    python examples/gallery/stripe_webhooks.py
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession

import spark_ext as sx

OUT = Path("out/gallery/stripe_webhooks")
os.environ.setdefault("STRIPE_SECRET", "whsec_new")
os.environ.setdefault("STRIPE_SECRET_BEFORE", "whsec_old")
EVENT = "id string, type string, data struct<object: struct<amount: bigint, currency: string>>"


def job(spark: SparkSession) -> sx.Job:
    made = sx.Job(spark, "payments", state=OUT / "state")
    secrets = ["env:STRIPE_SECRET", "env:STRIPE_SECRET_BEFORE"]  # either is valid until the old one is taken out
    inbox = made.inbox("stripe", scheme="stripe", secrets=secrets, schema=EVENT)
    payments = inbox.read("payments").where("type = 'charge.succeeded'").select("id", "data.object.*")
    table = payments.writeStream.format("delta_2pc").option("uid", "payments-table").option("path", str(OUT / "paid"))
    return made.add("load", table)


def send(url: str, event: str, amount: object, secret: str = "STRIPE_SECRET", age: int = 0) -> int:
    """Send what Stripe would send; returns the status of the answer."""
    charge = {"object": {"amount": amount, "currency": "eur"}}
    body = json.dumps({"id": event, "type": "charge.succeeded", "data": charge}).encode()
    at = int(time.time()) - age
    signature = hmac.new(os.environ[secret].encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    headers = {"Content-Type": "application/json", "Stripe-Signature": f"t={at},v1={signature}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    spark = sx.session("stripe-webhooks")
    running = job(spark)
    running.start()
    with running.serve_inbox("stripe") as gateway:
        answers = [send(gateway.url, "evt_1", 950), send(gateway.url, "evt_2", 120, secret="STRIPE_SECRET_BEFORE")]
        answers.append(send(gateway.url, "evt_1", 950))  # a retry
        answers.append(send(gateway.url, "evt_3", "much"))  # accepted, and put aside
        answers.append(send(gateway.url, "evt_4", 5, age=3600))  # signed an hour ago: refused
        result = running.drain()

    print(f"answers {answers}; {result.rows} rows")
    spark.read.format("delta").load(str(OUT / "paid")).orderBy("id").show(truncate=False)


if __name__ == "__main__":
    main()
