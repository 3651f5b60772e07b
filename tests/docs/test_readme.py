"""The README's example is run as it stands, on two months of the data that it names; its tables are true."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd
from deltalake import DeltaTable

from spark_ext.script import load_function
from spark_ext.spark import formats
from tests.support import pages

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_example_runs_and_runs_again_to_nothing(tmp_path: Path) -> None:
    example = sys.modules[load_function(ROOT / "examples" / "flights.py", "job").__module__]
    flights = example.package_flights()
    flights = flights[flights["month"] <= 2]
    (tmp_path / "data").mkdir()
    example.write_months(flights, tmp_path / "data" / "flights")
    (code,) = pages.python_of(README)
    for rows in (None, "0 rows in 0 epochs"):
        said = pages.run(tmp_path, code)
        assert "job 'delays' FINISHED" in said
        assert rows is None or rows in said
    daily = DeltaTable(tmp_path / "out" / "delays" / "daily").to_pandas()
    expected = flights.groupby([flights["departure"].dt.date.rename("day"), "carrier"])["dep_delay"].agg(
        flights="size", mean_dep_delay="mean"
    )
    pd.testing.assert_frame_equal(
        daily.sort_values(["day", "carrier"], ignore_index=True), expected.reset_index(), check_dtype=False
    )


def test_every_shipped_source_and_sink_is_in_the_table() -> None:
    shown = set(re.findall(r"^\| \[`(\w+)`\]\(docs/\1\.md\) \|", README, flags=re.MULTILINE))
    shipped = {connector.name() for connector in formats.load()}
    assert shown == shipped - {"end_of_input"}  # which with_watermark adds by itself


def test_every_setting_is_documented_with_its_default() -> None:
    from spark_ext.options import milliseconds
    from spark_ext.settings import JobSettings

    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", pages.read("job"), flags=re.MULTILINE))
    shipped = JobSettings.of("docs", {})
    for name in JobSettings.model_fields:
        told, real = rows[name].strip(), getattr(shipped, name)
        assert (told == "none" and not real) or milliseconds(told) == real, name
