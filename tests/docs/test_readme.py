"""The README's tables are true; its example is run in `tests/docs/test_examples.py`."""

from __future__ import annotations

import re
from pathlib import Path

from spark_ext.spark.session import formats

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_shipped_source_and_sink_is_in_the_table() -> None:
    shown = set(re.findall(r"^\| \[`(\w+)`\]\(docs/\1(?:_source)?\.md\) \|", README, flags=re.MULTILINE))
    shipped = {connector.name() for connector in formats.load()}
    assert shown == shipped - {"control_stamp", "end_of_input"}  # which with_control and with_watermark add
