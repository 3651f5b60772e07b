"""Runs a notebook and keeps its outputs, without a trace of the machine: `python -m tests.support.notebook FILE`."""

import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

VIEW: Final = "application/vnd.jupyter.widget-view+json"
STATES: Final = "application/vnd.jupyter.widget-state+json"
PLACES: Final = re.compile(r"(?:^|[\s'\"(=])(?:/[\w.-]+){2,}|\b[A-Z]:\\")  # what looks like an absolute path
LAST: Final = """
import threading
from ipywidgets.widgets.widget import _instances
for thread in threading.enumerate():
    if thread.name.startswith("widget of "):
        thread.join()
for widget in _instances.values():
    widget.send_state()
"""
"""Sends widgets as they are at the end: nbclient drops what a thread sends between two cells."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def executed(path: Path, folder: Path) -> Any:
    """A copy of a notebook with the outputs of a run."""
    found = read(path)
    for cell in found.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    client = NotebookClient(found, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    found.cells.append(nbformat.v4.new_code_cell(LAST))
    with client.setup_kernel():
        for number, cell in enumerate(found.cells):
            client.execute_cell(cell, number)
        client.set_widgets_metadata()
    found.cells.pop()
    return found


def widgets(notebook: Any) -> dict[str, str]:
    states = notebook.metadata.get("widgets", {}).get(STATES, {}).get("state", {})
    return {one: state["state"]["value"] for one, state in states.items() if "value" in state["state"]}


def kept(notebook: Any) -> Any:
    """What is committed: a widget as it was at the end, and no messages on standard error."""
    last = widgets(notebook)
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type != "code":
            continue
        cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
        for output in cell.outputs:
            data = output.get("data", {})
            if VIEW in data:
                data["text/html"] = last[data.pop(VIEW)["model_id"]]
    notebook.metadata.pop("widgets", None)
    # Of the interpreter only that it is Python: its version is the machine's.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def texts(notebook: Any) -> list[str]:
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            found.append("".join(output.get("text", "")))
            found += ["".join(value) for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return found


def main(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(kept(executed(path, Path(folder))), path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
