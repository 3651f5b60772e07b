"""Conformance, "Commit", of `http_2pc`, against a receiver that obeys the page's contract with the least memory."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from pyspark.sql import types as T

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.http_2pc.sink import HttpTwoPhaseCommit
from spark_ext.testing.sink_contract import SinkContract
from spark_ext.testing.sink_driver import Row, SinkTarget
from spark_ext.testing.sink_queries import SinkQueryContract
from tests.servers import receiver
from tests.servers.receiver import Receiver
from tests.sinks.files_2pc.files_target import from_json
from tests.support.folders import folder_snapshot

TOKEN = "a-token-that-nobody-sees"


class HttpTarget(SinkTarget):
    before_commit = "delta.before_commit"
    after_commit = "http.settled"
    points: ClassVar[tuple[str, ...]] = (
        "delta.before_fence", "http.fenced", "http.decided", "http.answered", "http.recorded",
    )  # fmt: skip
    huge = 100_000
    secrets = (TOKEN,)

    def __init__(self, url: str, folder: Path, outbox: Path) -> None:
        self.url, self.folder, self.outbox = url, folder, outbox

    def sink(self, uid: str = "out", **options: str) -> TwoPhaseCommitSink:
        given = {"uid": uid, "url": self.url, "outbox": str(self.outbox), "token": TOKEN, "batch_rows": "2000"}
        return HttpTwoPhaseCommit({**given, **options})

    def rows(self) -> list[dict[str, Any]]:
        return [{**row, **from_json(row, self._known(row))} for row in receiver.rows(self.folder)]

    def _known(self, row: Row) -> T.StructType:
        return T.StructType([field for field in self.types if field.name in row])

    spoiling = MappingProxyType({"batch_rows": "1"})
    records_first = True

    def spoiled(self, row: Row) -> Row:
        return {**row, "name": receiver.REFUSED}

    def leftovers(self) -> set[str]:
        """An epoch leaves the outbox once all of it was acknowledged: what is there is not visible yet."""
        return {str(file.relative_to(self.outbox)) for file in self.outbox.rglob("part-*.parquet")}

    def drop(self) -> None:
        """The outbox; a receiver forgets what its own page says."""
        shutil.rmtree(self.outbox)

    def snapshot(self) -> Callable[[], object]:
        return folder_snapshot(self.outbox)

    def damage(self) -> Callable[[], object]:
        receiver.behave(self.url, {"status": 503, "text": f"Bearer {TOKEN} is not welcome now", "always": True})
        return lambda: receiver.behave(self.url)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with Receiver(tmp_path_factory.mktemp("receiver"), memory="newest") as there:
        yield there


@pytest.fixture
def target(there: Receiver, tmp_path: Path) -> SinkTarget:
    there.forget()
    return HttpTarget(there.url, there.folder, tmp_path / "outbox")


@pytest.mark.core
class TestHttp2pc(SinkContract):
    pass


class TestHttp2pcInSpark(SinkQueryContract):
    pass
