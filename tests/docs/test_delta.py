"""The page `docs/delta_2pc.md` says which table features are written and which are refused."""

from __future__ import annotations

import re

from spark_ext.delta import features
from tests.support import pages

PAGE = pages.read("delta_2pc")


def test_the_features_that_are_written_are_those_of_the_code() -> None:
    written = re.search(r"^Written: ([^.]*)\.", PAGE, re.MULTILINE)
    assert written is not None
    assert set(re.findall(r"`(\w+)`", written[1])) == features._NOTHING_TO_DO
    refused = re.search(r"Refused, by name: (.*?);", PAGE, re.DOTALL)
    assert refused is not None
    assert set(re.findall(r"`(\w+)`", refused[1])) >= features._IF_USED.keys()
