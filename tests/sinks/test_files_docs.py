"""The page `docs/files_2pc.md` says what is so: its examples run, its table of options is that of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from spark_ext.sinks.files_2pc import FilesSinkOptions

PAGE = (Path(__file__).parents[2] / "docs" / "files_2pc.md").read_text(encoding="utf-8")


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
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE.split("## Options")[1].split("## ")[0], re.MULTILINE))
    assert listed.keys() == FilesSinkOptions.model_fields.keys()
    defaults = FilesSinkOptions.model_validate({"uid": "a", "path": "b"})
    for name, told in listed.items():
        if told.startswith("`"):
            given = {"uid": "a", "path": "b", name: told.strip("`")}
            assert getattr(FilesSinkOptions.model_validate(given), name) == getattr(defaults, name), name
