"""The page `docs/http_2pc.md` says what is so: its example runs, its table of answers is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from spark_ext.sinks.http_2pc.client import Verdict, verdict
from tests.servers.receiver import Receiver
from tests.support import pages


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    code = "\n".join(pages.python_blocks("http_2pc"))
    with Receiver(tmp_path / "receiver") as receiver:
        pages.run(tmp_path, code, RECEIVER_URL=receiver.url, RECEIVER_TOKEN="not-for-tables")
        assert sorted(row["id"] for row in receiver.rows()) == list(range(2500))
        assert {one["authorization"] for one in receiver.requests()} == {"Bearer not-for-tables"}
        assert len(receiver.requests()) == 3
    written = [file for file in (tmp_path / "state").rglob("*") if file.is_file()]
    assert written and not any(b"not-for-tables" in file.read_bytes() for file in written)


def test_each_status_means_what_the_table_says() -> None:
    rows = re.findall(r"^\| ([0-9][^|]*) \| ([^|]*) \|$", pages.read("http_2pc"), re.MULTILINE)
    assert len(rows) >= 5
    for statuses, meaning in rows:
        for status in map(int, re.findall(r"\b\d{3}\b", statuses)):
            said = verdict(status, "retry")
            if status == 409:
                continue
            told = Verdict.FENCED if "FENCED" in meaning else Verdict.REFUSED if "stops" in meaning else Verdict.AGAIN
            assert said is told, status
