"""The example of the page on object stores runs as printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ext.stores.options import KEYS
from tests.servers.object_store import KEY, SECRET, Bucket
from tests.support import pages


@pytest.mark.slow(30, "a Spark session of its own, with the jars of S3")
def test_the_example_runs_as_printed(bucket: Bucket, tmp_path: Path) -> None:
    (example,) = pages.python_blocks("object-stores")
    pages.run(tmp_path, example, BUCKET=bucket.uri, STORE_KEY=KEY, STORE_SECRET=SECRET, STORE_URL=bucket.endpoint)
    assert bucket.keys("state/ledger/") and bucket.keys("copy/_delta_log/")


def test_the_table_has_every_option() -> None:
    table = pages.read("object-stores").partition("## Options")[2].partition("## What works")[0]
    assert [key for key in KEYS if f"`{key}`" not in table] == []
