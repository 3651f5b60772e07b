"""Recording a checkpoint: whether it is complete is decided once, by who records it or by who gives it up."""

from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_ext.checkpoints.pinning import ToPin
from spark_ext.checkpoints.savepoint import MANIFEST, About
from spark_ext.checkpoints.unaligned import Taken
from spark_ext.errors import CheckpointError, ConfigurationError
from spark_ext.jobs.checkpointing import savepoint_requests as taking
from spark_ext.jobs.checkpointing.savepoint_requests import CompletionGate, Savepoints
from spark_ext.ledger.kinds import CheckpointMode
from spark_ext.ledger.memory import JobMemory
from spark_ext.ledger.schema import CheckpointRow
from spark_ext.model.checkpoint_metadata import CheckpointMetadata
from spark_ext.model.cut import Cut
from spark_ext.spark.backend.classic import CLASSIC
from tests.queries.fakes import Bench
from tests.support.coordinated import execution_of

TAKEN = Taken(Cut({}, ()), {}, 0, datetime(2026, 1, 1, tzinfo=timezone.utc))


class Recording:
    """A checkpoint of a job, as its worker records it when a test says so."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, kept: Path | None) -> None:
        about = About("lab", "job-id", 7, 1, 1, "savepoint", "aligned", TAKEN.at.isoformat(), 0)
        what = ToPin(about, CheckpointMetadata("lab", 1, 1, {}), {}, [], {}, {})
        monkeypatch.setattr(taking, "describe", lambda *_: what)
        monkeypatch.setattr(taking, "cut_metadata", lambda *_: what.metadata)
        monkeypatch.setattr(JobMemory, "read", lambda _: None)
        monkeypatch.setattr(CLASSIC, "frame", lambda _: SimpleNamespace(sparkSession=None))
        self.bench = Bench(folder)
        self.action: Callable[[], object] = lambda: None
        exchanges: Any = SimpleNamespace(links=(), with_cut=self._given, hold=lambda *_: None)
        execution, ledger = execution_of([self.bench.run]), cast(Any, self.bench.ledger)
        savepoints = Savepoints(self.bench.context, ledger, execution, exchanges, lambda: 7)
        place = None if kept is None else str(kept)
        self.gate = savepoints.pin(7, "savepoint", CheckpointMode.ALIGNED, {}, place, lambda _: None)

    def _given(self, what: str, looks: Any, action: Callable[[Taken, Any], object], then: Any) -> None:
        self.action = lambda: action(TAKEN, {})

    @property
    def statuses(self) -> list[str]:
        return [row.status for row in self.bench.rows(CheckpointRow)]


@pytest.mark.parametrize("kept", [True, False])
def test_one_given_up_is_not_sealed_nor_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    folder = tmp_path / "saved"
    recording = Recording(tmp_path, monkeypatch, folder if kept else None)
    assert recording.gate.give_up("the job is ending")
    with pytest.raises(CheckpointError, match="given up while it was being recorded: the job is ending"):
        recording.action()
    assert recording.statuses == [], "whoever gave it up has said so"
    assert not [file for file in folder.rglob("*") if file.is_file()]


@pytest.mark.parametrize("kept", [True, False])
def test_one_that_is_complete_cannot_be_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    folder = tmp_path / "saved"
    recording = Recording(tmp_path, monkeypatch, folder if kept else None)
    recording.action()
    assert not recording.gate.give_up("the job is ending")
    assert recording.statuses == ["COMPLETED"]
    assert (folder / MANIFEST).exists() == kept


def test_the_first_decision_stays() -> None:
    gate = CompletionGate()
    assert gate.give_up("one") and gate.give_up("another")
    with pytest.raises(CheckpointError, match="one"):
        gate.complete()
    assert gate.given_up


@pytest.mark.parametrize(
    ("path", "roots", "allowed"),
    [
        ("{folder}/savepoints/1", (), True), ("{folder}/../elsewhere", (), False), ("{folder}/link/1", (), False),
        ("/etc/x", (), False), ("/etc/x", ("/srv", "/etc"), True), ("{folder}/savepoints/1", ("/srv",), False),
        ("/srvx/1", ("/srv",), False), ("s3://b/p/1", ("s3://b/p",), True), ("s3://b/p/../q", ("s3://b/p",), False),
        ("s3://b/pq/1", ("s3://b/p",), False),
    ],
)  # fmt: skip
def test_one_over_http_stays_below_the_roots(tmp_path: Path, path: str, roots: tuple[str, ...], allowed: bool) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    check = partial(taking.check_root, path.format(folder=folder), roots, "j", str(folder / "state"))
    if allowed:
        check()
    else:
        with pytest.raises(ConfigurationError, match="over HTTP, a savepoint may only be written below"):
            check()


def test_a_state_directory_at_the_top_has_no_savepoints_by_http() -> None:
    with pytest.raises(ConfigurationError):
        taking.check_root("/etc/x", (), "j", "/state")
