"""Inboxes of jobs: whatever a gateway has acknowledged is in the table, once; a few jobs, looked at from many sides."""

import itertools
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ext as sx
from spark_ext.bad_rows.names import default_table
from spark_ext.errors import ConfigurationError, FencedError, JobFailedError, StateError
from spark_ext.ingest.log import LEASE
from spark_ext.jobs.inbox import InboxServing
from spark_ext.jobs.job import Job
from spark_ext.jobs.linking import inboxes
from spark_ext.ledger import Ledger
from spark_ext.ledger.schema import IncidentRow
from spark_ext.model.lifecycle import State
from spark_ext.storage import LocalFolder
from spark_ext.views.snapshot import InboxSnapshot
from spark_ext.views.status import read_status
from tests.servers.schema_registry import SchemaRegistry
from tests.support.inboxes import Gateways
from tests.support.refusals import refused
from tests.support.waiting import until


class Shop:
    """A job that writes the events of the inbox `orders` to a table, and the inbox's gateways."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.state = spark, folder, folder / "state"
        self.gateways = Gateways(self.state)

    def job(self, *, state: Path | None = None, starting: str = "first", out: str = "out", **settings: Any) -> Job:
        job = sx.Job(self.spark, "shop", state=state or self.state)
        orders = job.inbox("orders", **settings)
        frame = orders.read("in", starting=starting, discovery_interval=50, max_rows_per_epoch=40)
        writer = frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(self.folder / out))
        return job.add("load", writer)

    def table(self, out: str = "out") -> list[dict[str, Any]]:
        if not (self.folder / out / "_delta_log").exists():
            return []
        return DeltaTable(str(self.folder / out)).to_pyarrow_table().to_pylist()

    def events(self, out: str = "out") -> list[str]:
        return sorted(row["event_id"] for row in self.table(out))

    def has_all(self) -> bool:
        return set(self.events()) >= set(self.gateways.acknowledged)

    def kept(self, gateway: str) -> tuple[int, int]:
        log = self.gateways.place.log(gateway)
        return log.released(), log.kept()

    def incidents(self, type_: str) -> list[Any]:
        return Ledger(str(self.state)).table(IncidentRow).rows([("type", "=", type_)])


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(spark, tmp_path)
    yield made
    made.gateways.close()


@contextmanager
def running(job: Job) -> Iterator[Job]:
    job.start()
    try:
        yield job
    finally:
        if not job.done:
            job.stop()


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.mark.slow(22, "runs a job three times, with gateways that send all the time")
def test_g1_g2_g3_g6_g8_g10_g12_what_was_acknowledged_is_in_the_table_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "LOOK_EVERY", 0.2)
    done, counter = threading.Event(), itertools.count()

    def keep_sending() -> None:
        while not done.wait(0.05):
            number = next(counter)
            shop.gateways.send("g1", f"a{number}", f"both{number}")
            shop.gateways.send("g2", f"b{number}", f"both{number}")  # redelivered to another gateway

    sender = threading.Thread(target=keep_sending)
    with running(shop.job()):
        sender.start()
        until(lambda: len(shop.table()) > 30, "rows while events arrive")
    # The job does not run: gateways accept all the same.
    before = len(shop.gateways.acknowledged)
    until(lambda: len(shop.gateways.acknowledged) > before + 10, "acknowledgements without a job")
    with running(shop.job()) as job:
        until(lambda: len(shop.table()) > 60, "rows after a restart")
        until(lambda: shop.kept("g1")[1] > 0 and shop.kept("g2")[1] > 0, "released entries")
        done.set()
        sender.join()
        until(shop.has_all, "all that was acknowledged")
        conflict = shop.gateways.acknowledged[0]
        shop.gateways.send("g2", conflict, body="another body")
        shop.gateways.send("g2", "last")
        shop.gateways.close("g2")
        # A gateway that is gone keeps the job from its end, until somebody seals its log.
        drain = threading.Thread(target=job.drain)
        drain.start()
        until(lambda: shop.incidents("gateway_silent"), "an incident of the silent gateway")
        assert not job.done and drain.is_alive()
        until(lambda: shop.gateways.refuses("g1"), "the answer that the job ends")
        shop.gateways.seal("g2")
        drain.join(120)
        assert job.state is State.FINISHED
    assert shop.events() == sorted(set(shop.gateways.acknowledged))
    (incident,) = {row.incident_id: row for row in shop.incidents("gateway_silent")}.values()
    assert json.loads(json.dumps(incident.labels)) == {"inbox": "orders", "gateway": "g2"}
    bad = DeltaTable(default_table(str(shop.state))).to_pyarrow_table().to_pylist()
    assert [row["raw"] for row in bad] == ["another body"]
    for gateway in ("g1", "g2"):
        mine = [row["sequence"] for row in shop.table() if row["gateway"] == gateway]
        assert len(mine) == len(set(mine))
    with running(shop.job()) as again:
        until(lambda: again.done, "the end of a job that had finished")
        assert again.state is State.FINISHED


def test_g1_nothing_is_released_before_it_is_durable(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    works = threading.Event()
    synced: list[str] = []

    def sync(self: LocalFolder) -> None:
        if not works.is_set():
            raise OSError(5, "Input/output error")
        synced.append(self.uri)

    with running(shop.job()) as job:
        monkeypatch.setattr(LocalFolder, "sync_system", sync)
        shop.gateways.send("g1", *names("a", 5))
        until(shop.has_all, "the rows")
        until(lambda: job.last_incident(), "an incident of storage that does not answer")
        assert shop.kept("g1") == (0, 0)
        works.set()
        until(lambda: shop.kept("g1")[0] > 0, "a release")
        assert synced


def test_g11_a_savepoint_keeps_what_a_restore_needs(shop: Shop, tmp_path: Path) -> None:
    with running(shop.job()) as job:
        shop.gateways.send("g1", *names("a", 5))
        until(shop.has_all, "the rows")
        until(lambda: shop.kept("g1")[1] > 0, "a release")
        job.savepoint(tmp_path / "save")
        first = shop.kept("g1")[1]
        shop.gateways.send("g1", *names("b", 5))
        shop.gateways.send("g2", *names("c", 5), "b0")
        until(shop.has_all, "the rows after the savepoint")
        until(lambda: shop.kept("g1")[0] > first and shop.kept("g2")[0] > 0, "a release")
        assert shop.kept("g1")[1] == first and shop.kept("g2")[1] == 0
    before = sorted((row["event_id"], row["gateway"]) for row in shop.table())

    elsewhere = shop.job(state=tmp_path / "elsewhere", out="other")
    with pytest.raises(StateError, match="continues in the middle of inbox 'orders'"):
        elsewhere.restore(tmp_path / "save")
    with pytest.raises(ConfigurationError, match="cannot read all of inbox 'orders' again"):
        shop.job().reset("load")
    with running(shop.job().restore(tmp_path / "save")):
        until(lambda: len(shop.table()) == 15, "the rows after the restore")
        assert sorted((row["event_id"], row["gateway"]) for row in shop.table()) == before

        # Once its folder is gone, nothing is kept for it.
        shutil.copytree(tmp_path / "save", tmp_path / "copy")
        shutil.rmtree(tmp_path / "save")
        shop.gateways.send("g1", "d")
        until(lambda: shop.kept("g1")[1] > first, "a release")
    with pytest.raises(StateError, match="have been deleted"):
        shop.job().restore(tmp_path / "copy")


def shows(job: Job, query: str, **figures: Any) -> None:
    """The job, its ledger and its metrics show the same of an inbox."""

    def shown() -> InboxSnapshot | None:
        found = job.snapshot().query(query).inboxes
        return found[0] if found and figures.items() <= found[0].to_json().items() else None

    found = until(shown, "the figures of the inbox")
    assert found is not None and found.gateways["accepting"] == 1
    until(lambda: read_status(job.state_directory).query(query).inboxes == (found,), "a heartbeat has them")
    assert job._active.metrics is not None
    samples = [one for one in job._active.metrics.samples() if one.metric.name.startswith("spark_ext_inbox_")]
    metrics = {one.metric.name: one.value for one in samples}
    labelled = {one.labels[2]: one.value for one in samples if len(one.labels) == 3}
    assert labelled["401"] == found.rejected["401"] and found.ack_p50_ms is not None
    assert [labelled[one] for one in ("0.5", "0.99")] == [found.ack_p50_ms / 1000, (found.ack_p99_ms or 0) / 1000]
    for name, member in (
        *(("acknowledged_events_total", "acknowledged"), ("repeated_events_total", "repeats")),
        *(("held_bytes", "bytes"), ("limit_bytes", "max_bytes"), ("accepted_events_total", "accepted")),
    ):
        assert metrics[f"spark_ext_inbox_{name}"] == getattr(found, member), name


def post(gateway: InboxServing, body: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {gateway.token}", "Idempotency-Key": key, "Content-Type": "application/json"}
    return httpx.post(gateway.url, content=body, headers=headers, timeout=30).status_code


@pytest.mark.core
def test_g8_g12_u9_rows_that_a_gateway_has_acknowledged_over_http(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "LOOK_EVERY", 0.2)
    job = sx.Job(shop.spark, "typed", state=shop.state, metrics=True)
    with pytest.raises(ConfigurationError, match="has no inbox 'other'"):
        job.serve_inbox("other")
    orders = job.inbox("orders", schema="id long, amount double", scheme="idempotency-key")
    frame = orders.read("in", metadata=True, discovery_interval=50).selectExpr("id", "amount", "_metadata.event_id")
    job.add("load", frame.writeStream.format("delta_2pc").option("uid", "out").option("path", str(tmp_path / "out")))
    with pytest.raises(ConfigurationError, match="not registered yet"):
        job.serve_inbox("orders")
    with running(job):
        with job.serve_inbox("orders") as gateway:
            assert post(gateway, '{"id": 1, "amount": 2.5}', "a") == 202
            assert post(gateway, '{"id": 1, "amount": 2.5}', "a") == 202
            assert post(gateway, '{"id": "x"}', "bad") == 202
            assert post(gateway, '{"id": 2}', "b") == 202
            os.kill(gateway.pid, signal.SIGKILL)
            until(lambda: not gateway.running, "the end of the gateway")
        with job.serve_inbox("orders") as gateway:
            assert post(gateway, '{"id": 2}', "b") == 202
            assert post(gateway, '{"id": 3, "amount": 1}', "c") == 202
            assert httpx.post(gateway.url, content="{}", timeout=30).status_code == 401
            counts = {"accepted": 6, "acknowledged": 6, "repeats": 2, "conflicts": 0, "rejected": {"401": 1}}
            shows(job, "load", **counts, bytes=0, oldest_s=None)
            assert job.drain(120).state is State.FINISHED
            until(lambda: not gateway.running, "the end of the gateway after the drain")
    wanted = [(1, 2.5, "a"), (2, None, "b"), (3, 1.0, "c")]
    assert sorted((row["id"], row["amount"], row["event_id"]) for row in shop.table()) == wanted
    (bad,) = DeltaTable(default_table(str(shop.state))).to_pyarrow_table().to_pylist()
    assert (bad["raw"], json.loads(bad["position"])["event_id"]) == ('{"id": "x"}', "bad")


def test_a_registry_that_is_down_loses_no_event(shop: Shop, tmp_path: Path) -> None:
    number = {"name": "id", "type": "long"}
    first: dict[str, Any] = {"type": "record", "name": "Order", "fields": [number]}
    second = {**first, "fields": [number, {"name": "state", "type": "string", "default": "new"}]}
    with SchemaRegistry() as registry:
        for schema in (first, second):
            registry.register("orders", json.dumps(schema))
        job = sx.Job(shop.spark, "avro", state=shop.state, restart_backoff="50 ms")
        options = {"body_format": "avro", "body_subject": "orders", "schema_registry_url": registry.url}
        rows = job.inbox("orders").read("in", metadata=True, discovery_interval=50, **options)
        writer = rows.selectExpr("id", "state", "_metadata.event_id").writeStream.format("delta_2pc")
        with running(job.add("load", writer.option("uid", "out").option("path", str(tmp_path / "out")))):
            registry.status = 503
            shop.gateways.send("g1", "old", body="\0\0\0\0\1\2")
            until(lambda: job.last_incident(), "an incident of the registry")
            shop.gateways.send("g1", "bad", body="{}")
            registry.status = 200
            until(lambda: shop.events() == ["old"], "the event, once the registry answers")
            shop.gateways.send("g1", "new", body="\0\0\0\0\2\4\10sent")
            until(lambda: len(shop.table()) == 2, "another event")
    found = sorted((row["id"], row["state"], row["event_id"]) for row in shop.table())
    assert found == [(1, "new", "old"), (2, "sent", "new")]
    (bad,) = DeltaTable(default_table(str(shop.state))).to_pyarrow_table().to_pylist()
    assert bad["raw"] == "{}"


def test_g11_inboxes_belong_to_one_job_and_a_reset_is_exact_or_refused(shop: Shop, tmp_path: Path) -> None:
    with running(shop.job()):
        shop.gateways.send("g1", *names("a", 5))
        until(shop.has_all, "the rows")
        until(lambda: shop.kept("g1")[1] > 0, "a release")
    with pytest.raises(ConfigurationError, match=r"starting='kept'"):
        shop.job().reset("load")
    shop.job(starting="kept").reset("load")
    shutil.rmtree(tmp_path / "out")
    with running(shop.job(starting="kept")):
        shop.gateways.send("g1", "b", "a0")
        until(lambda: "b" in shop.events(), "the rows after the reset")
    assert shop.events() == ["b"], "what was released is known, and not read again"

    shop.gateways.close()  # it removes what was released
    shutil.copytree(shop.gateways.place.path, tmp_path / "theirs" / "inboxes" / "orders")
    with pytest.raises(ConfigurationError, match="belongs to another job"):
        shop.job(state=tmp_path / "theirs", out="theirs").start()
    job = sx.Job(shop.spark, "other", state=tmp_path / "third")
    frame = shop.spark.readStream.format("http_ingest").option("uid", "x").option("path", shop.gateways.place.path)
    writer = frame.load().writeStream.format("delta_2pc").option("uid", "y").option("path", str(tmp_path / "y"))
    with pytest.raises((ConfigurationError, JobFailedError), match="not an inbox of this job"):
        job.add("q", writer).start()


@pytest.mark.slow(30, "runs two copies of a job, one after the other")
@pytest.mark.parametrize("first", ["original", "copy"])
def test_g11_of_two_copies_of_a_state_directory_one_goes_on_and_the_other_is_refused(
    shop: Shop, tmp_path: Path, first: str
) -> None:
    with running(shop.job()):
        shop.gateways.send("g1", "a")
        until(lambda: shop.has_all() and shop.kept("g1")[1] > 0, "a release")
    shop.gateways.send("g1", "both")
    shop.gateways.close()  # it is in the folder
    shutil.copytree(shop.state, tmp_path / "copy")
    shop.gateways.send("g1", "later")
    place = {"original": shop.state, "copy": tmp_path / "copy"}
    other = place["copy" if first == "original" else "original"]
    theirs = ["later"] if first == "original" else []
    with running(shop.job(state=place[first])):
        until(lambda: set(shop.events()) >= {"both", *theirs}, "what the first one has")
    before = {path: path.read_bytes() for path in (other / "inboxes").rglob("*.*") if path.name != LEASE}
    for kind, words in ((FencedError, "started twice, from two copies of its state"), (StateError, "is ahead of this")):
        with refused(kind, words):  # the second start of the copy has a number of its own
            shop.job(state=other).start()
    assert {path: path.read_bytes() for path in before} == before, "nothing of it was released"
    with running(shop.job(state=place[first])):
        gateways = Gateways(place[first])
        try:
            gateways.send("g2", "new", "both")
            until(lambda: "new" in shop.events(), "an event after the refusal")
        finally:
            gateways.close()
    assert shop.events() == sorted(["a", "both", "new", *theirs])
