"""Sinks whose target is elsewhere, with what they keep before a commit in an object store: the contract kits."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import SinkTarget
from tests.conformance.test_commit_http import HttpTarget
from tests.servers.kafka import Broker
from tests.servers.object_store import Bucket
from tests.servers.receiver import Receiver
from tests.sinks.kafka_2pc.kafka_kit import KafkaTarget
from tests.sinks.store_targets import FilesInStore
from tests.support.contracts import SAME_IN_ALL_MODES, without

FOLDER = "t"  # of what is kept, in the bucket; that of `FilesInStore`


def staged(bucket: Bucket, suffix: str) -> set[str]:
    return {key for key in bucket.keys(f"{FOLDER}/") if key.endswith(suffix)}


class HttpFromStore(HttpTarget):
    """A receiver, and an outbox in a bucket. A driver is killed only around changes of the outbox."""

    points: ClassVar[tuple[str, ...]] = ("delta.before_fence", "http.fenced", "http.decided", "http.before_settle")

    def __init__(self, url: str, folder: Path, bucket: Bucket) -> None:
        super().__init__(url, folder, folder)
        self.store = FilesInStore(bucket)

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return super().sink(uid, **{"outbox": self.store.uri, **options})

    def leftovers(self) -> set[str]:
        return staged(self.store.bucket, ".parquet") - staged(self.store.bucket, ".checkpoint.parquet")

    def drop(self) -> None:
        self.store.drop()

    def snapshot(self) -> Callable[[], object]:
        return self.store.snapshot()


class KafkaFromStore(KafkaTarget):
    def __init__(self, kafka: Broker, folder: Path, bucket: Bucket) -> None:
        super().__init__(kafka, folder)
        self.store = FilesInStore(bucket)

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        return super().sink(uid, **{"staging": self.store.uri, **options})

    def leftovers(self) -> set[str]:
        return staged(self.store.bucket, ".arrow")


@pytest.fixture
def in_store(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket that this process and its children find by the environment."""
    bucket.use(monkeypatch)
    return bucket


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with Receiver(tmp_path_factory.mktemp("receiver"), memory="newest") as there:
        yield there


@without(*SAME_IN_ALL_MODES, "_c8_", "_c10_two_jobs_", "_bad_rows_crash_at_every_step_")
class TestHttp2pcFromStore(SinkContract):
    @pytest.fixture
    def target(self, in_store: Bucket, there: Receiver) -> SinkTarget:
        there.forget()
        return HttpFromStore(there.url, there.folder, in_store)


@without(*SAME_IN_ALL_MODES, "_c8_", "_c10_two_jobs_", "_i7_", "_bad_rows_crash_at_every_step_")
class TestKafka2pcFromStore(SinkContract):
    @pytest.fixture
    def target(self, in_store: Bucket, kafka: Broker, tmp_path: Path) -> Any:
        return KafkaFromStore(kafka, tmp_path, in_store)
