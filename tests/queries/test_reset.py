"""A reset: where the checkpoint goes in an object store, and what a rescale that was interrupted has left."""

from pathlib import Path

import pytest

from spark_ext.ledger import Ledger, LedgerWriter, start_incarnation
from spark_ext.queries.reset import reset_queries
from spark_ext.spark.logs.rescaled import complete
from tests.servers.object_store import Bucket


def test_a_copy_in_an_object_store(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.use(monkeypatch)
    ledger = Ledger(str(tmp_path))
    LedgerWriter(ledger, start_incarnation(ledger, "lab")).end("done")
    files = {"metadata": b'{"id": "of-q"}', "offsets/0": b"v1", "state/0/0/1.changelog": b"x" * 1000}
    for name, content in files.items():
        bucket.put(f"lab/queries/q/checkpoint/{name}", content)
    assert reset_queries(ledger, "lab", f"{bucket.uri}/lab", {"q": ()}, "") == {"q": 2}
    assert bucket.keys("lab/queries/q/checkpoint/") == []
    assert {key.partition("/")[2].split("/", 3)[3]: bucket.get(key) for key in bucket.keys("lab/queries/q/")} == files
    assert all(key.startswith("lab/queries/q/checkpoint.until-") for key in bucket.keys("lab/queries/q/"))
    assert reset_queries(ledger, "lab", f"{bucket.uri}/lab", {"q": ()}, "") == {"q": 3}, "there is nothing to copy"


def test_a_copy_for_a_rescale_that_was_interrupted_goes_as_well(tmp_path: Path) -> None:
    """Under the query's name and its former one, whether or not the checkpoint was moved aside for it already."""
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
