"""docs/values.md is what the tests measure."""

from __future__ import annotations

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sources.contract import ChannelSource
from spark_ext.spark.session import formats
from tests.support import pages
from tests.values.page import written
from tests.values.table import SINKS, SOURCES

INSIDE = {"control_stamp", "end_of_input", "control", "datagen", "hybrid"}
"""Sources that read nothing from outside, and `hybrid`, whose stages are other sources."""


def test_the_page_has_the_tables_of_the_tests() -> None:
    assert pages.read("values") == written(pages.read("values")), "run python -m tests.values.page docs/values.md"


def test_each_source_and_sink_is_in_a_table() -> None:
    shipped = {one.name() for one in formats.load() if issubclass(one, (ChannelSource, TwoPhaseCommitSink))}
    assert {name.split(",")[0] for name in (*SOURCES, *SINKS)} == shipped - INSIDE
