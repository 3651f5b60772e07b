"""The page `docs/delta_2pc.md` says what is so: its examples run, its tables and lists are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from spark_ext.sinks._delta import features
from spark_ext.sinks.delta_2pc import DeltaOptions

PAGE = (Path(__file__).parents[2] / "docs" / "delta_2pc.md").read_text(encoding="utf-8")


def test_the_examples_run_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_each_option_is_in_the_table_with_its_default() -> None:
    listed = dict(re.findall(r"^\| `([a-z]\w*)` \| ([^|]*) \|", PAGE, re.MULTILINE))
    assert listed.keys() == DeltaOptions.model_fields.keys()
    defaults = DeltaOptions.model_validate({"uid": "a", "path": "b"})
    for name, told in listed.items():
        if told.startswith("`"):
            given = {"uid": "a", "path": "b", name: told.strip("`")}
            assert getattr(DeltaOptions.model_validate(given), name) == getattr(defaults, name), name


def test_the_features_that_are_written_are_those_of_the_code() -> None:
    written = re.search(r"^Written: ([^.]*)\.", PAGE, re.MULTILINE)
    assert written is not None
    assert set(re.findall(r"`(\w+)`", written[1])) == features._NOTHING_TO_DO
    refused = re.search(r"Refused, by name: (.*?);", PAGE, re.DOTALL)
    assert refused is not None
    assert set(re.findall(r"`(\w+)`", refused[1])) >= features._IF_USED.keys()
