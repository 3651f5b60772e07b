"""The page of each source and sink says what is so: its parts are there, its table of options is that of the code.

Their examples are run in `tests/docs/test_examples.py` and `tests/docs/test_server_examples.py`.
"""

import re
from collections.abc import Mapping

import pytest

from spark_ext.options import Options
from spark_ext.sinks.contract import SinkOptions, TwoPhaseCommitSink
from spark_ext.sources.contract import ChannelSource, SourceOptions
from spark_ext.sources.hybrid.stages import OWN
from spark_ext.spark.session import formats
from tests.support import pages

SHIPPED: dict[str, type[Options]] = {
    one.name(): one.options_type
    for one in formats.load()
    if issubclass(one, (ChannelSource, TwoPhaseCommitSink)) and one.name() not in ("control_stamp", "end_of_input")
}
SHARED: dict[str, type[Options]] = {"sources": SourceOptions, "sinks": SinkOptions}
"""Pages of all sources and of all sinks, with the options that are there."""
TABLES = {"sources": pages.read("sources"), "sinks": pages.section("sinks")}
OTHERWISE = {"uid", "commit_attempts", "commit_patience"}
"""Such options of which a page of a sink says more."""
PAGES = {"control": "control_source"}  # pages that have not the name of their connector
NEEDED: Mapping[str, Mapping[str, str]] = {
    "files": {"path": "p"}, "delta_snapshot": {"path": "p"}, "control": {}, "datagen": {}, "exchange": {"path": "p"},
    "http_ingest": {"path": "p"},
    "hybrid": {"stages": "a", "a.format": "datagen"}, "kafka_range": {"bootstrap_servers": "b:1", "topics": "t"},
    "postgres": {"table": "t"}, "delta_2pc": {"path": "p"}, "files_2pc": {"path": "p"}, "exchange_2pc": {"path": "p"},
    "kafka_2pc": {"bootstrap_servers": "b:1"}, "http_2pc": {"url": "http://b/c", "outbox": "d"},
    "postgres_2pc": {"table": "t"},
}  # fmt: skip
"""Options without which a connector is refused, besides the uid."""
WRITTEN_OTHERWISE = {"transactional_id", "headers", "starting", "ending"}
"""Their defaults are named by a pattern, are never shown, or are what nothing stands for."""


@pytest.mark.parametrize("name", SHIPPED)
def test_each_page_has_its_parts(name: str) -> None:
    page = PAGES.get(name, name)
    for part in ("Options", "What is guaranteed", "Not guaranteed"):
        assert pages.section(page, part).strip()
    assert re.search(r"\btypes?\b", pages.read(page), re.IGNORECASE)
    assert pages.python_blocks(page)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_option_is_in_the_table(name: str) -> None:
    listed, real = pages.options(pages.section(PAGES.get(name, name))), set(SHIPPED[name].model_fields)
    if name == "hybrid":
        real |= {"<stage>.<option>", *(f"<stage>.{own}" for own in OWN)}
    if issubclass(SHIPPED[name], SourceOptions):
        listed, real = listed - {"uid"}, real - SourceOptions.model_fields.keys()
    else:
        listed, real = listed - OTHERWISE, real - SinkOptions.model_fields.keys()
    assert listed == real


@pytest.mark.parametrize("page", SHARED)
def test_the_options_of_all_are_on_their_page(page: str) -> None:
    assert (pages.options(TABLES[page]) | {"uid"}) - SHIPPED.keys() == SHARED[page].model_fields.keys()
    listed = {PAGES.get(name, name) for name in SHIPPED if name.endswith("_2pc") == (page == "sinks")}
    assert listed <= set(pages.links(page))


@pytest.mark.parametrize("name", [*SHIPPED, *SHARED])
def test_each_default_in_the_table_is_that_of_the_code(name: str) -> None:
    kind: type[Options]
    if name in SHARED:
        documented, kind, needed = pages.defaults(TABLES[name]), SHARED[name], {"uid": "a"}
    else:
        table = pages.section(PAGES.get(name, name))
        documented, kind, needed = pages.defaults(table), SHIPPED[name], {"uid": "a", **NEEDED[name]}
    assert documented or name in ("control", "hybrid")  # their options have no defaults that can be given
    shipped = kind.parse(name, needed)
    for option, value in documented.items():
        if option not in WRITTEN_OTHERWISE:
            assert getattr(kind.parse(name, {**needed, option: value}), option) == getattr(shipped, option), option
