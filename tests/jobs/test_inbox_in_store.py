"""A job with its state, inboxes and tables in an object store, and gateways whose write-ahead logs are on a disk."""

import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable

import spark_ext as sx
from spark_ext.jobs.inbox import InboxServing
from spark_ext.model.lifecycle import State
from spark_ext.storage import StoreOptions
from tests.servers.object_store import Bucket
from tests.support.cheap_jvm import SHORT
from tests.support.processes import Tree
from tests.support.waiting import until

LEVELS = ("disk", "store")


def post(gateway: InboxServing, name: str) -> str:
    headers = {"Authorization": f"Bearer {gateway.token}", "Idempotency-Key": name}
    answer = httpx.post(gateway.url, content=name, headers=headers, timeout=60)
    assert answer.status_code == 202, answer.text
    return answer.headers["Spark-Ext-Level"]


def main(uri: str, wal: str) -> None:
    """Each inbox has a gateway that is killed, and one of the same name that continues."""
    spark = sx.session("in-store", conf=SHORT, storage_options=dict(StoreOptions.of_environment(os.environ).values))
    job = sx.Job(spark, "shop", state=f"{uri}/state")
    for ack in LEVELS:
        rows = job.inbox(ack, ack=ack, scheme="idempotency-key").read(f"{ack}-in").select("event_id", "sequence")
        job.add(ack, rows.writeStream.format("delta_2pc").options(uid=f"{ack}-out", path=f"{uri}/{ack}"))
    job.start()
    with ExitStack() as gateways:
        for ack in LEVELS:
            with job.serve_inbox(ack, gateway="g1", wal=wal) as gateway:
                assert [post(gateway, name) for name in "ab"] == [ack, ack]
                os.kill(gateway.pid, signal.SIGKILL)
                until(lambda: not gateway.running, "the end of the gateway")
            again = gateways.enter_context(job.serve_inbox(ack, gateway="g1", wal=wal))
            assert [post(again, name) for name in "bc"] == [ack, ack]
        assert job.drain(300).state is State.FINISHED


@pytest.mark.slow(60, "starts a job with two queries in a store, and four gateways")
def test_inboxes_in_an_object_store(bucket: Bucket, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.jobs.test_inbox_in_store", bucket.uri, str(tmp_path / "wal")]
    environment = {**bucket.environment, "SPARK_MASTER": "local[2]"}
    with Tree(command, tmp_path / "job.log", environment) as run:
        assert run.wait(500) == 0, run.text()[-3000:]
    for ack in LEVELS:
        table = DeltaTable(f"{bucket.uri}/{ack}", storage_options=bucket.options).to_pyarrow_table()
        assert sorted(table.column("event_id").to_pylist()) == ["a", "b", "c"], ack
        folder = f"state/inboxes/{ack}/gateways/g1"
        assert b'"kind": "seal"' in bucket.get(max(bucket.keys(f"{folder}/log/")))
        assert f"{folder}/wal" not in " ".join(bucket.keys(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
