"""The page `docs/http_2pc.md` says what is so: its example runs, its tables are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from spark_ext.sinks._http.client import Verdict, verdict
from spark_ext.sinks.http_2pc import HttpOptions
from tests.servers.receiver import Receiver

PAGE = (Path(__file__).parents[2] / "docs" / "http_2pc.md").read_text(encoding="utf-8")


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    with Receiver(tmp_path / "receiver") as receiver:
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env={**os.environ, "RECEIVER_URL": receiver.url, "RECEIVER_TOKEN": "not-for-tables"},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert sorted(row["id"] for row in receiver.rows()) == list(range(2500))
        assert {one["authorization"] for one in receiver.requests()} == {"Bearer not-for-tables"}
        assert len(receiver.requests()) == 3
    written = [file for file in (tmp_path / "state").rglob("*") if file.is_file()]
    assert written and not any(b"not-for-tables" in file.read_bytes() for file in written)


def test_each_option_is_in_the_table_with_its_default() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE))
    assert listed.keys() == HttpOptions.model_fields.keys()
    needed = {"uid": "a", "url": "http://b/c", "outbox": "d"}
    defaults = HttpOptions.model_validate(needed)
    for name, told in listed.items():
        if told.startswith("`") and told != "`{}`":
            assert getattr(HttpOptions.model_validate({**needed, name: told.strip("`")}), name) == getattr(
                defaults, name
            ), name


def test_each_status_means_what_the_table_says() -> None:
    rows = re.findall(r"^\| ([0-9][^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 5
    for statuses, meaning in rows:
        for status in map(int, re.findall(r"\b\d{3}\b", statuses)):
            said = verdict(status, "retry")
            if status == 409:
                continue
            told = Verdict.FENCED if "FENCED" in meaning else Verdict.REFUSED if "stops" in meaning else Verdict.AGAIN
            assert said is told, status
