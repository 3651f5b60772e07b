"""Targets of the contract kit in an object store, which the environment names (AWS_...)."""

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.delta_2pc import DeltaTwoPhaseCommit
from spark_ext.sinks.files_2pc import committed_uris
from spark_ext.sinks.files_2pc.sink import FilesTwoPhaseCommit
from spark_ext.storage import filesystem_of
from spark_ext.testing.sink_driver import SinkTarget
from tests.servers.object_store import Bucket
from tests.servers.store_proxy import Fault, StoreProxy


class StoreTarget(SinkTarget):
    refused: str  # The requests without which no commit is possible
    huge = 100_000
    wide_columns = 200
    wide_value = 1_000_000

    def __init__(self, bucket: Bucket, proxy: StoreProxy | None = None) -> None:
        self.bucket, self.proxy = Bucket(bucket.endpoint, bucket.name), proxy
        self.uri = f"{bucket.uri}/t"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "proxy": None, "bucket": Bucket(self.bucket.endpoint, self.bucket.name)}

    def drop(self) -> None:
        for key in self.bucket.keys("t/"):
            self.bucket.client.delete_object(Bucket=self.bucket.name, Key=key)

    def snapshot(self) -> Callable[[], object]:
        before = {key: self.bucket.get(key) for key in self.bucket.keys("t/")}

        def put_back() -> None:
            self.drop()
            for key, content in before.items():
                self.bucket.put(key, content)

        return put_back

    def damage(self) -> Callable[[], object]:
        assert self.proxy is not None
        self.proxy.behave(Fault(self.refused, "PUT", status=403))
        return self.proxy.behave


class DeltaInStore(StoreTarget):
    before_commit = "delta.before_commit"
    after_commit = "delta.committed"
    points = ("delta.before_fence", "delta.fenced", "delta.cleaned")
    refused = "/_delta_log/"

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return DeltaTwoPhaseCommit({"uid": uid, "path": self.uri, **options})

    def rows(self) -> list[dict[str, Any]]:
        return DeltaTable(self.uri).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(self.uri) else []

    def leftovers(self) -> set[str]:
        there = {key.removeprefix("t/") for key in self.bucket.keys("t/") if "/_delta_log/" not in key}
        logs = [key for key in self.bucket.keys("t/_delta_log/") if re.search(r"\d{20}\.json$", key)]
        lines = [json.loads(line) for key in logs for line in self.bucket.get(key).splitlines()]
        return there - {unquote(line["add"]["path"]) for line in lines if "add" in line}


class FilesInStore(StoreTarget):
    before_commit = "files.before_commit"
    after_commit = "files.committed"
    points = ("files.before_claim", "files.claimed", "files.cleaned", "files.published")
    refused = "/_epochs/"

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return FilesTwoPhaseCommit({"uid": uid, "path": self.uri, **options})

    def _committed(self) -> list[str]:
        return committed_uris(self.uri) if self.bucket.keys("t/_files_2pc.json") else []

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for uri in self._committed():
            system, path = filesystem_of(uri)
            found += pq.read_table(path, filesystem=system).to_pylist()
        return found

    def leftovers(self) -> set[str]:
        return {f"{self.bucket.uri}/{key}" for key in self.bucket.keys("t/_files/")} - set(self._committed())
