"""The page `docs/exactly-once.md` speaks of every sink that ships, and of the kills that are tried."""

from __future__ import annotations

import re

import pytest

from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.spark.session import formats
from tests.chaos.outlets import OUTLETS
from tests.support import pages

MECHANISM, TRIED = pages.read("exactly-once").split("## Kill tests")

SINKS = [found.name() for found in formats.load() if issubclass(found, TwoPhaseCommitSink)]


@pytest.mark.parametrize("sink", SINKS)
def test_each_sink_is_in_the_table_and_is_killed(sink: str) -> None:
    assert re.search(rf"^\| \[`{sink}`\]\({sink}\.md\) \|", MECHANISM, re.MULTILINE)
    assert sink in OUTLETS


def test_the_table_of_kills_is_of_sinks_that_can_be_killed() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", TRIED, re.MULTILINE)
    assert rows
    for name, kills, *kinds in rows:
        assert name in OUTLETS
        assert int(kills) == sum(map(int, kinds))
