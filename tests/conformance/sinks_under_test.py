"""The sinks that the lines "Commit" are tried on, each behind a small adapter. A further sink is one more in `SINKS`.

Each is driven through `EpochWriter`, as Spark drives it, but without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from spark_ext import registry
from spark_ext.registry import Registration
from spark_ext.sinks._writer import EpochWriter, Written
from tests.sinks import delta_kit
from tests.sinks.delta_kit import Driver


@dataclass(frozen=True)
class SinkUnderTest:
    """What the tests have to know of a sink. `path` is always the target's."""

    name: str
    """The format."""
    driver: Callable[..., Driver]
    """One incarnation's use of it: `claim`, `write`, and the sink itself."""
    visible: Callable[[Path], pa.Table]
    """The rows, as any reader sees them."""
    stored: Callable[[Path], set[str]]
    """Names of everything that `write` has left there, visible or not."""
    live: Callable[[Path], set[str]]
    """Names of that which readers see."""
    commits: Callable[[Path], int]
    """A number that grows with each commit."""
    brink: str
    """Fail point after the last look at the target, before the commit."""
    done: str
    """Fail point after the commit took effect, before `commit` returns."""
    damage: Callable[[Path], Callable[[], object]]
    """Make every commit fail from now on; returns what mends it."""

    def ids(self, path: Path) -> list[int]:
        """The visible rows' ids, sorted: a repeated one shows twice."""
        return sorted(self.visible(path).column("id").to_pylist())


def _delta_damage(path: Path) -> Callable[[], object]:
    """The log's next entry is half a line, as a lost write leaves it."""
    entry = path / "_delta_log" / f"{DeltaTable(path).version() + 1:020}.json"
    entry.write_text('{"add"')
    return entry.unlink


DELTA = SinkUnderTest(
    name="delta_2pc",
    driver=Driver,
    visible=delta_kit.table,
    stored=delta_kit.data_files,
    live=lambda path: {str(Path(uri).relative_to(path)) for uri in DeltaTable(path).file_uris()},
    commits=lambda path: DeltaTable(path).version(),
    brink="delta.before_commit",
    done="delta.committed",
    damage=_delta_damage,
)

SINKS: Mapping[str, SinkUnderTest] = {sink.name: sink for sink in (DELTA,)}


def writer(driver: Driver) -> EpochWriter:
    """What Spark would call, told of the driver's incarnation by the session registry, as in a job."""
    place = registry.folder()
    assert place is not None, "the registry's folder is given in the environment"
    registry.publish(
        [
            Registration(
                uid=driver.uid,
                role="sink",
                job="job",
                job_id=driver.job_id,
                query="q",
                state=str(place / "state"),
                checkpoint=str(place / "state" / "queries" / "q" / "checkpoint"),
                incarnation=driver.incarnation,
                lineage=0,
            )
        ],
        place,
    )
    return EpochWriter(driver.sink(), driver.schema)


def written(
    driver: Driver, epoch: int, values: Iterable[Mapping[str, Any]], partition: int = 0, attempt: int = 0
) -> Written:
    """What the task of one partition tells the driver after its phase one."""
    values = list(values)
    return Written(driver.query_id, epoch, len(values), driver.write(epoch, values, partition, attempt))


def run(driver: Driver, epoch: int, values: Iterable[Mapping[str, Any]]) -> None:
    """One epoch of one task."""
    writer(driver).commit([written(driver, epoch, values)], epoch)
