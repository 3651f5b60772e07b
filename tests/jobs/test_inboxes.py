"""What a job releases of its inboxes, and what it reports of their gateways: without Spark."""

import json
import os
import re
import time
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ext.checkpoints.savepoint import MANIFEST
from spark_ext.checkpoints.unaligned import Held, Taken
from spark_ext.errors import ConfigurationError
from spark_ext.ingest import store
from spark_ext.ingest.description import DAY, InboxDescription
from spark_ext.ingest.log import LEASE, Lease
from spark_ext.jobs.linking import inboxes, leases
from spark_ext.jobs.linking.inboxes import Inboxes, InboxLink, Positions
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.ledger.schema import IncidentRow
from spark_ext.ledger.write_behind import WriteBehind
from spark_ext.model.checkpoint_metadata import CheckpointMetadata, QueryMetadata, SourceMetadata
from spark_ext.model.cut import Cut, CutPoint
from spark_ext.model.offsets import Finished, LoggedOffsets, Running, SourceOffset
from spark_ext.queries.history import Figures
from spark_ext.queries.spec import OperatorSpec, QuerySpec
from spark_ext.storage import LocalFolder, sync_systems
from tests.support.coordinated import execution_of
from tests.support.inboxes import Inbox, request
from tests.support.waiting import until


def offset(uid: str = "in", finished: tuple[str, ...] = (), **at: int) -> SourceOffset:
    running = {gateway: Running([entry, 0], "id") for gateway, entry in at.items()}
    return SourceOffset(uid, running=running, finished=tuple(Finished(1, name, [9, 0]) for name in finished))


def at(*offsets: SourceOffset) -> LoggedOffsets:
    return LoggedOffsets(0, {}, tuple(one.to_json() for one in offsets))


class Reading:
    """A job with the inbox `orders`, whose gateways `g1` and `g2` have 6 entries each: a claim, and five with a row."""

    def __init__(
        self, folder: Path, *readers: str, declared: tuple[str, ...] = (), behind: WriteBehind | None = None
    ) -> None:
        self.inbox, self.folder = Inbox(folder), folder
        for gateway in ("g1", "g2"):
            self.inbox.push(gateway, *([request(f"{number}")] for number in range(5)))
        path = str(self.inbox.folder)
        nothing: Any = None
        sources = {uid: (OperatorSpec(uid, "http_ingest", {"path": path}),) for uid in readers or ("in",)}
        specs = [QuerySpec(f"q-{uid}", nothing, one, (), (), None, "", False) for uid, one in sources.items()]
        runs: Any = [SimpleNamespace(uid=spec.uid, spec=spec, lineage=1, figures=Figures()) for spec in specs]
        ledger = Ledger(str(folder))
        self.behind = behind or WriteBehind(
            LedgerWriter(ledger, start_incarnation(ledger, "shop", takeover=True)), "shop"
        )
        context: Any = SimpleNamespace(job="shop", job_id="job", state=str(folder), write_behind=self.behind)
        waiting = {"q-late": ("q-in",)} if declared else {}
        links = [InboxLink("orders", path, frozenset(declared))]
        self.inboxes = Inboxes(context, execution_of(runs, waiting=waiting), links)

    def release(
        self,
        offsets: dict[str, LoggedOffsets | None],
        held: Held | None = None,
        *,
        epoch: int = 0,
        finished: bool = False,
    ) -> None:
        given = {f"q-{uid}": one for uid, one in offsets.items()}
        cut = Cut({query: CutPoint(epoch, finished) for query in given}, ())
        self.inboxes.release(Taken(cut, given, 0, datetime.now(timezone.utc)), held or {})

    def released(self, gateway: str = "g1") -> tuple[int, int]:
        log = self.inbox.place.log(gateway)
        return log.released(), log.kept()

    def savepoint(self, name: str, found: SourceOffset | None) -> Path:
        place = self.folder / name
        place.mkdir()
        (place / MANIFEST).touch()
        part = QueryMetadata("id", 0, sources={"in": SourceMetadata("http_ingest", {}, found)})
        self.inboxes.hold(str(place), CheckpointMetadata("shop", 1, 1, {"q-in": part}))
        return place


@pytest.fixture(autouse=True)
def no_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_ext.jobs.linking.inboxes.outputs", lambda spec: ())


def test_what_a_query_has_committed_is_released_and_never_taken_back(tmp_path: Path) -> None:
    job = Reading(tmp_path)
    job.release({"in": None})
    assert job.released() == (0, 0)
    job.release({"in": at(offset(g1=3))})
    assert (job.released("g1"), job.released("g2")) == ((3, 3), (0, 0)), "it has not started with g2"
    job.release({"in": at(offset(g1=2))})
    assert job.released() == (3, 3)


def test_the_slowest_source_and_what_a_checkpoint_holds_count(tmp_path: Path) -> None:
    job = Reading(tmp_path, "a", "b")
    job.release({"a": at(offset("a", g1=4)), "b": at(offset("b", g1=2))})
    assert job.released() == (2, 2)
    both = {"a": at(offset("a", g1=5)), "b": at(offset("b", g1=5))}
    job.release({**both}, {"q-b": at(offset("b", g1=3))})
    assert job.released() == (3, 3)


def test_nothing_is_released_before_all_who_read_it_are_there(tmp_path: Path) -> None:
    job = Reading(tmp_path, "in", declared=("in", "late"))
    job.release({"in": at(offset(g1=4))})
    assert job.released() == (0, 0)


def test_a_channel_or_a_query_that_has_finished_needs_nothing(tmp_path: Path) -> None:
    job = Reading(tmp_path)
    job.release({"in": at(offset(finished=("g1",)))})
    assert (job.released("g1"), job.released("g2")) == ((6, 6), (0, 0))
    job.release({"in": None}, finished=True)
    assert job.released("g2") == (6, 6)
    assert Positions.by(SourceOffset("in", confirmed=1), lambda upto: {"g1": upto}).of("g1") > 6


def test_g10_the_job_deletes_what_is_released_of_a_sealed_log(tmp_path: Path) -> None:
    job = Reading(tmp_path)
    job.inbox.seal("g1")
    job.release({"in": at(offset(g1=3, g2=3))})
    assert [job.inbox.place.log(gateway).numbers()[0] for gateway in ("g1", "g2")] == [3, 0]


def test_g11_savepoints_keep_entries_that_are_released_until_they_are_deleted(tmp_path: Path) -> None:
    job = Reading(tmp_path)
    first, second = job.savepoint("one", offset(g1=1)), job.savepoint("two", offset(g1=3))
    job.release({"in": at(offset(g1=5, g2=5))})
    assert (job.released("g1"), job.released("g2")) == ((5, 1), (5, 0))
    (first / MANIFEST).unlink()
    job.release({"in": at(offset(g1=5, g2=5))})
    assert job.released("g1") == (5, 3)
    (second / MANIFEST).unlink()
    job.release({"in": at(offset(g1=6, g2=5))})
    assert (job.released("g1"), job.released("g2")) == ((6, 6), (5, 5))


def test_g11_what_a_restored_job_has_still_to_read_is_kept_without_its_savepoint(tmp_path: Path) -> None:
    job = Reading(tmp_path)
    save = job.savepoint("one", offset(g1=1))
    job.release({"in": at(offset(g1=5))})
    (save / MANIFEST).unlink()
    job.release({"in": at(offset(g1=2))})  # it was restored, and has read one entry again
    assert job.released("g1") == (5, 2)


def test_g1_each_file_system_is_synced_before_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, synced = Reading(tmp_path), list[tuple[str, int]]()
    monkeypatch.setattr(LocalFolder, "sync_system", lambda self: synced.append((self.uri, job.released()[0])))
    job.release({"in": at(offset(g1=3))})
    job.release({"in": at(offset(g1=3))})
    assert synced == [(str(tmp_path), 0)], "once, and only if something is new"
    job.release({"in": at(offset(g1=3))}, epoch=1)
    assert len(synced) == 2, "an exchange may release what the inbox has released before"
    (tmp_path / "a").mkdir()
    sync_systems([str(tmp_path / "a"), str(tmp_path), str(tmp_path / "missing"), "s3://bucket/table", "/proc"])
    assert [place for place, _ in synced[2:]] == ["/proc", str(tmp_path)]


def test_a_disk_that_refuses_says_so(tmp_path: Path) -> None:
    LocalFolder(tmp_path).sync_system()
    with pytest.raises(OSError, match="No such file"):
        LocalFolder(tmp_path / "missing").sync_system()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "a/b"}, "cannot be an inbox's name"),
        ({"scheme": "stripes"}, "scheme is 'stripes'"),
        ({"ack": "memory"}, "ack is 'memory'"),
        ({"persist": "never"}, "persist is 'never'"),
        ({"on_bad_row": "fail", "columns": {}}, "on_bad_row is 'fail'"),
        ({"on_bad_row": "reject"}, "needs columns"),
        ({"scheme": "github"}, "no secret is given"),
        ({"scheme": "github", "secrets": "my-secret"}, "where it is found"),
        ({"scheme": "github", "secrets": ["env:A", "file:"]}, "where it is found"),
        ({"scheme": "pointer"}, "pointer belongs to"),
        ({"pointer": "/id"}, "pointer belongs to"),
        ({"dedup_window": "a week"}, "is not a duration"),
        ({"max_bytes": "much"}, "is not a size"),
        ({"max_body": 0}, "max_body is 0"),
        ({"scheme": "slack", "secrets": "env:A", "ack": "table"}, "wait for a few seconds"),
        ({"scheme": "shopify", "secrets": "env:A", "persist": "checkpoint"}, "wait for a few seconds"),
    ],
)
def test_settings_of_an_inbox_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        wanted(**given)
    assert "my-secret" not in str(refused.value) and refused.value.operator == "inbox 'orders'"


def wanted(name: str = "orders", **given: Any) -> InboxDescription:
    sizes = {"dedup_window": None, "max_bytes": "1 GiB", "max_body": "1 MiB"}
    return InboxDescription.wanted(name, "inbox 'orders'", **{"scheme": "", "secrets": (), **sizes, **given})


def test_the_settings_of_an_inbox() -> None:
    found = wanted(scheme="slack", secrets="env:A", ack="none", persist="checkpoint", max_body="2k")
    assert (found.secrets, found.dedup_window, found.max_body) == (("env:A",), 7 * DAY, 2048)
    assert wanted(scheme="stripe", secrets=["env:A", "file:b"]).dedup_window == 31 * DAY
    assert wanted(dedup_window="8 days").dedup_window == 8 * DAY


def test_g6_a_silent_gateway_is_an_incident_until_it_is_heard_of_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "LOOK_EVERY", 0)
    job = Reading(tmp_path)
    place = job.inbox.place.gateway("g1")
    place.write(LEASE, Lease(1, "start", time.time_ns(), "h", 1, "accepting").to_json())
    os.utime(Path(place.uri) / LEASE, (0, 0))
    job.inboxes.look()
    assert not job.behind.incidents.open(""), "a storage's clock may be wrong: it may be written at any moment"
    monkeypatch.setattr(leases, "RENEWED_WITHIN", 0)
    job.inboxes.look()
    (found,) = job.behind.incidents.open("")
    assert found.incident.labels == {"inbox": "orders", "gateway": "g1"} and "host h" in found.incident.what
    # The next start of the job takes it over.
    monkeypatch.setattr(leases, "RENEWED_WITHIN", leases.SILENT_AFTER)
    later = Reading(tmp_path, behind=job.behind)
    later.inboxes.look()
    assert [one.incident for one in job.behind.incidents.open("")] == [found.incident]
    job.inbox.seal("g1")
    later.inboxes.look()
    assert not job.behind.incidents.open("")


def test_a_gateway_with_another_clock_is_one_incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "LOOK_EVERY", 0)
    monkeypatch.setattr(store, "LEASE_EVERY", 0)
    ahead = [3_600]
    clock = SimpleNamespace(
        monotonic=time.monotonic, time=lambda: time.time() + ahead[0], time_ns=lambda: time.time_ns() + ahead[0] * 10**9
    )
    monkeypatch.setattr(store, "time", clock)
    job = Reading(tmp_path)
    gateway = store.GatewayStore(job.inbox.about, job.inbox.place.folder, job.inbox.wal, "g1")
    gateway.open()

    def told() -> list[tuple[str, str]]:
        job.inboxes.look()
        return [(one.incident.type, one.incident.what) for one in job.behind.incidents.open("")]

    try:
        ((kind, what),) = until(told, "an incident of the clock")
        assert kind == "gateway_clock" and re.search("gateway 'g1' .* about 3,[56].. s ahead of the driver's", what)
        assert told() == [(kind, what)]
        ahead[0] = 0
        until(lambda: not told(), "the end of the incident")
    finally:
        gateway.close()


def test_a_gap_of_a_feed_is_one_incident_whenever_it_was_recorded(tmp_path: Path) -> None:
    gap = json.dumps({"version": 1, "from": 1_760_000_000_000_000, "to": 1_760_000_060_000_000, "reason": "cut off"})

    def reported(*gaps: tuple[str, str]) -> list[dict[str, Any]]:
        """What the ledger has after a start that finds some."""
        job = Reading(tmp_path)
        folder = job.inbox.place.folder.below("gaps")
        for name, text in gaps:
            folder.write(name, text)
        job.inboxes.look()
        assert folder.names() == []
        columns = ["type", "what", "labels", "severity"]
        return job.behind.ledger.table(IncidentRow).read(columns, [("type", "=", "feed_gap")]).to_pylist()

    (found,) = reported(("g-1-002.json", gap))
    assert "from 2025-10-09T08:53:20+00:00 to 2025-10-09T08:54:20+00:00, and" in found["what"]
    assert found["what"].endswith("cut off") and found["severity"] == "ERROR"
    assert json.loads(found["labels"]) == {"inbox": "orders", "gateway": "g-1"}
    assert reported(("g-1-002.json", gap)) == [found], "a driver may be killed before it has deleted the file"
    assert len(reported(("g-1-003.json", gap), ("g2-001.json", "{"))) == 3
