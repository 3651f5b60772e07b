"""The page of each source and sink says what is so: its parts are there, its table of options is that of the code.

Their examples are run in `tests/docs/test_examples.py` and `tests/docs/test_server_examples.py`.
"""

import re
from collections.abc import Mapping

import pytest

from spark_ext.options import Options
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sources.contract import ChannelSource, SourceOptions
from spark_ext.sources.hybrid.stages import OWN
from spark_ext.spark.session import formats
from tests.support import pages

SHIPPED: dict[str, type[Options]] = {
    one.name(): one.options_type
    for one in formats.load()
    if issubclass(one, (ChannelSource, TwoPhaseCommitSink)) and one.name() not in ("control_stamp", "end_of_input")
}
SHARED = set(SourceOptions.model_fields)
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
    elif issubclass(SHIPPED[name], SourceOptions):
        real -= SHARED
    assert listed == real


def test_the_options_of_all_sources_are_on_their_page() -> None:
    assert pages.options(pages.read("sources")) - SHIPPED.keys() == SHARED
    assert {PAGES.get(name, name) for name in SHIPPED if not name.endswith("_2pc")} <= set(pages.links("sources"))


@pytest.mark.parametrize("name", [*SHIPPED, "sources"])
def test_each_default_in_the_table_is_that_of_the_code(name: str) -> None:
    kind: type[Options]
    if name == "sources":
        documented, kind, needed = pages.defaults(pages.read(name)), SourceOptions, {"uid": "a"}
    else:
        table = pages.section(PAGES.get(name, name))
        documented, kind, needed = pages.defaults(table), SHIPPED[name], {"uid": "a", **NEEDED[name]}
    assert documented or name == "control"  # its one option has no default that can be given
    shipped = kind.parse(name, needed)
    for option, value in documented.items():
        if option not in WRITTEN_OTHERWISE:
            assert getattr(kind.parse(name, {**needed, option: value}), option) == getattr(shipped, option), option
