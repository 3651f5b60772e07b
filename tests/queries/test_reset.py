"""A reset where the checkpoint cannot be moved aside: refused before anything is changed, and possible afterwards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyarrow.fs as pafs
import pytest

from spark_ext.errors import StateError
from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.queries.reset import reset_queries
from spark_ext.spark import spark_log
from spark_ext.spark.rescaled import complete


def test_on_an_object_store_the_user_moves_the_checkpoint_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly: it could never succeed, not even after its own advice had been followed."""
    ledger = Ledger(str(tmp_path))
    LedgerWriter(ledger, start_incarnation(ledger, "lab")).end("done")
    store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    filesystem = SimpleNamespace(from_uri=lambda uri: (store, uri.removeprefix("s3://bucket/")))
    monkeypatch.setattr(spark_log, "pafs", SimpleNamespace(FileSystem=filesystem))
    metadata = tmp_path / "lab" / "queries" / "q" / "checkpoint" / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("{}")
    with pytest.raises(StateError, match="cannot be moved aside"):
        reset_queries(ledger, "lab", "s3://bucket/lab", {"q": ()}, "")
    assert [row.event for row in ledger.jobs()] == ["started", "ended"], "nothing was started"
    metadata.rename(tmp_path / "elsewhere")
    assert reset_queries(ledger, "lab", "s3://bucket/lab", {"q": ()}, "") == {"q": 2}


def test_a_copy_for_a_rescale_that_was_interrupted_goes_as_well(tmp_path: Path) -> None:
    """Under the query's name and its former one, whether or not the checkpoint was moved aside for it already.

    Before, the next start took it for the checkpoint, and never read again what it had read.
    """
    ledger = Ledger(str(tmp_path))
    LedgerWriter(ledger, start_incarnation(ledger, "lab")).end("done")
    places = [tmp_path / "queries" / query / "checkpoint" for query in ("q", "former")]
    for place, interrupted in zip(places, ("checkpoint", "checkpoint.until-1"), strict=True):
        for name in (interrupted, "checkpoint.rescaled-1", ".checkpoint.rescaled"):
            place.with_name(name).mkdir(parents=True)
            (place.with_name(name) / "metadata").write_text("{}")
    reset_queries(ledger, "lab", str(tmp_path), {"q": ("former",)}, "")
    for place in places:
        assert not complete(str(place)) and not place.exists()
        (kept,) = place.parent.iterdir()
        assert kept.name.startswith("checkpoint.until-")
