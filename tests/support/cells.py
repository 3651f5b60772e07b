"""Runs a notebook that is kept as a script, cell by cell as a kernel does: without a file, and with its command."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

HEADER: Final = "# Databricks notebook source\n"
_BETWEEN: Final = re.compile(r"^# COMMAND -+$", re.MULTILINE)


def is_notebook(path: Path) -> bool:
    return path.read_text(encoding="utf-8").startswith(HEADER)


def run_cells(
    path: Path, patch: pytest.MonkeyPatch, folder: Path, change: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run it in this process, whose session it finds; returns its names. `change` gets these before its last part."""
    config = Config()
    config.HistoryManager.enabled = False
    patch.setenv("IPYTHONDIR", str(folder / "ipython"))
    patch.setattr(sys, "argv", ["ipykernel_launcher.py", "-f", str(folder / "kernel.json")])
    patch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    patch.setattr(sys, "excepthook", sys.excepthook)
    shell = InteractiveShell(config=config, user_module=sys.modules["__main__"])
    for cell in _BETWEEN.split(path.read_text(encoding="utf-8")):
        if "if __name__" in cell:
            change(shell.user_ns)
        shell.run_cell(cell, store_history=False).raise_error()
    assert "__file__" not in shell.user_ns
    return dict(shell.user_ns)
