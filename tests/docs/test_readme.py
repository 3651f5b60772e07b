"""The README's tables are true; its example is run in `tests/docs/test_examples.py`."""

from __future__ import annotations

import re
from pathlib import Path

from spark_ext.spark.session import formats
from tests.support import pages

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_shipped_source_and_sink_is_in_the_table() -> None:
    shown = set(re.findall(r"^\| \[`(\w+)`\]\(docs/\1(?:_source)?\.md\) \|", README, flags=re.MULTILINE))
    shipped = {connector.name() for connector in formats.load()}
    assert shown == shipped - {"control_stamp", "end_of_input"}  # which with_control and with_watermark add


def test_every_setting_is_documented_with_its_default() -> None:
    from spark_ext.options import byte_count, milliseconds
    from spark_ext.settings import JobSettings

    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", pages.read("job"), flags=re.MULTILINE))
    shipped = JobSettings.of("docs", {})
    for name in JobSettings.model_fields:
        documented, real = rows[name].strip(), getattr(shipped, name)
        if isinstance(real, (bool, str)):
            assert documented == str(real).lower(), name
        else:
            read = byte_count if name.endswith("_size") else milliseconds
            assert (documented == "none" and not real) or read(documented) == real, name
