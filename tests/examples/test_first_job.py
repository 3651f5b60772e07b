"""The notebook of the first job: it runs, and what is kept in it is what a run shows."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import cheap_jvm, notebook

PATH = Path(__file__).parents[2] / "examples" / "first_job.ipynb"
READ = r"FINISHED[:,] 60,000 rows in \d+ epochs"
SAID = rf"job 'first' {READ}, [\d.]+ s, incarnation 1\n  count: {READ}\n"


def outputs(found: Any, source: str) -> list[dict[str, Any]]:
    (cell,) = [cell for cell in found.cells if cell.cell_type == "code" and source in cell.source]
    return [one for one in cell.outputs if one.get("name") != "stderr"]


@pytest.mark.process
@pytest.mark.slow(40, "starts a kernel, which starts a JVM, and runs a job")
def test_the_notebook_runs_and_shows_what_is_kept_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cheap_jvm.environment().items():
        monkeypatch.setenv(name, value)
    before, found = notebook.read(PATH), notebook.executed(PATH, tmp_path)
    (value,) = notebook.widgets(found).values()
    assert ">FINISHED<" in value and "60,000 rows" in value and "4 of 4" in value
    found = notebook.kept(found)
    for shown in (before, found):
        (widget,) = outputs(shown, "job.widget()")
        assert ">FINISHED<" in widget["data"]["text/html"]
        (said,) = outputs(shown, "print(result)")
        assert re.fullmatch(SAID, said["text"])
        (figure,) = outputs(shown, "job.plot()")
        assert "image/png" in figure["data"]
    for source in ("toPandas()", "sum()", "again = "):  # rows are the same on each machine
        assert outputs(found, source) == outputs(before, source)
    (again,) = outputs(found, "again = ")
    assert again["text"] == "FINISHED 0 rows\n"
    (total,) = outputs(found, "sum()")
    assert total["data"]["text/plain"] == "60000"


def test_nothing_of_a_machine_is_kept() -> None:
    found = notebook.read(PATH)
    assert "widgets" not in found.metadata and found.metadata.language_info == {"name": "python"}
    for text in notebook.texts(found):
        assert not notebook.PLACES.search(text), text
    assert not any(one.get("name") == "stderr" for cell in found.cells for one in cell.get("outputs", ()))
