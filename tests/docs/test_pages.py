"""What single pages say is so: the README, the gallery, and the pages of `delta_2pc`, `http_2pc` and exactly-once.

Their examples are run in `tests/docs/test_examples.py` and `tests/docs/test_server_examples.py`.
"""

import re
import runpy
from pathlib import Path

import pytest

from spark_ext.delta import features
from spark_ext.sinks.contract import TwoPhaseCommitSink
from spark_ext.sinks.http_2pc.client import Verdict, verdict
from spark_ext.spark.session import formats
from tests.chaos.outlets import OUTLETS
from tests.support import pages

README = (Path(__file__).parents[2] / "README.md").read_text()
DELTA = pages.read("delta_2pc")
MECHANISM = pages.read("exactly-once")
TRIED = pages.section("conformance", "Kill tests")
SINKS = [found.name() for found in formats.load() if issubclass(found, TwoPhaseCommitSink)]


def test_every_shipped_source_and_sink_is_in_the_table() -> None:
    shown = set(re.findall(r"^\| \[`(\w+)`\]\(docs/\1(?:_source)?\.md\) \|", README, flags=re.MULTILINE))
    shipped = {connector.name() for connector in formats.load()}
    assert shown == shipped - {"control_stamp", "end_of_input"}  # which with_control and with_watermark add


def test_the_features_that_are_written_are_those_of_the_code() -> None:
    written = re.search(r"^Written: ([^.]*)\.", DELTA, re.MULTILINE)
    assert written is not None
    assert set(re.findall(r"`(\w+)`", written[1])) == features._NOTHING_TO_DO
    refused = re.search(r"Refused, by name: (.*?);", DELTA, re.DOTALL)
    assert refused is not None
    assert set(re.findall(r"`(\w+)`", refused[1])) >= features._IF_USED.keys()


def test_each_status_means_what_the_table_says() -> None:
    rows = re.findall(r"^\| ([0-9][^|]*) \| ([^|]*) \|$", pages.read("http_2pc"), re.MULTILINE)
    assert len(rows) >= 5
    for statuses, meaning in rows:
        for status in map(int, re.findall(r"\b\d{3}\b", statuses)):
            said = verdict(status, "retry")
            if status == 409:
                continue
            expected = (
                Verdict.FENCED if "FENCED" in meaning else Verdict.REFUSED if "stops" in meaning else Verdict.AGAIN
            )
            assert said is expected, status


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


def test_the_page_shows_each_program_and_no_other() -> None:
    page = pages.read("gallery")
    programs = {path.stem for path in pages.GALLERY.glob("*.py")}
    assert set(re.findall(r"\]\(\.\./examples/gallery/(\w+)\.py\)", page)) == programs
    assert programs >= set(pages.GALLERY_OF_SERVERS)


@pytest.mark.parametrize(
    ("program", "error", "said"),
    [
        ("kafka_to_postgres", SystemExit, "set KAFKA and POSTGRES_DSN"),
        ("object_store", AssertionError, "set BUCKET"),
        ("postgres_to_delta", SystemExit, "set POSTGRES_DSN"),
        ("redeliver_github", SystemExit, "set GITHUB_TOKEN"),
    ],
)
def test_a_program_of_the_gallery_says_what_it_needs(
    program: str, error: type[BaseException], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KAFKA", "POSTGRES_DSN", "BUCKET", "GITHUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(error, match=said):
        runpy.run_path(str(pages.GALLERY / f"{program}.py"), run_name="__main__")
