"""Errors of spark-ext as a script or notebook shows them: what happened and where in the user's own file, no library.

The whole traceback is shown with the environment variable SPARK_EXT_TRACEBACK=1, and stays on the exception.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from spark_ext.errors import ConfigurationError, SparkExtError, from_text
from spark_ext.spark.session import formats

VARIABLE: Final = "SPARK_EXT_TRACEBACK"

_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/pyspark/", "pyspark.zip/", "/py4j/", "<frozen ")
_PACKAGE: Final = str(Path(__file__).parents[2]) + os.sep


def install() -> None:
    """Show our errors briefly from now on; anything else is shown as before."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    notebook = _notebook()
    if notebook is not None and not notebook.custom_exceptions:
        notebook.set_custom_exc((Exception,), _show_in_notebook)


def ours(problem: BaseException) -> SparkExtError | None:
    """The error itself, or the one of a worker in an exception of Spark's; None if it is neither."""
    if isinstance(problem, SparkExtError):
        return problem
    if not type(problem).__module__.startswith(("pyspark.", "py4j.")):
        return None
    return from_text(str(problem), marked=True) or _format_not_found(str(problem))


def _format_not_found(text: str) -> SparkExtError | None:
    match = re.search(r"\[DATA_SOURCE_NOT_FOUND\] [^:]*: (\S+?)\. ", text)
    if match is None or formats.find(match[1]) is None:
        return None
    return ConfigurationError(
        f"Spark does not find the format '{match[1]}' in this thread, which has no active session, or one with which "
        "spark-ext is not registered",
        operator=f"format '{match[1]}'",
        kept="nothing was started",
        do="call spark_ext.register(spark) in this thread before its first load() or start()",
    )


def short(problem: SparkExtError, trace: TracebackType | None) -> str:
    """An error and the user's line that led to it."""
    kind = type(problem)
    text = f"{kind.__module__}.{kind.__qualname__}: {problem}"
    place = users_line(trace)
    return f"{text}\n  from: {place}" if place else text


def users_line(trace: TracebackType | None) -> str:
    """The innermost line of a traceback that is in no library: `flights.py, line 12, in main`; "" without one."""
    for frame in reversed(traceback.extract_tb(trace)):
        if not is_library(frame.filename):
            return f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return ""


def is_library(file: str) -> bool:
    """Whether a file of source code belongs to this package, to Spark or to another library."""
    standard = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
    return file.startswith((_PACKAGE, standard)) or any(part in file for part in _LIBRARIES)


def _show(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    found = None if os.environ.get(VARIABLE) else ours(problem)
    if found is None:
        sys.__excepthook__(kind, problem, trace)
        return
    print(short(found, trace), f"  ({VARIABLE}=1 shows the traceback)", sep="\n", file=sys.stderr)


def _notebook() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _show_in_notebook(shell: Any, kind: type[BaseException], problem: BaseException, trace: Any, **given: Any) -> None:
    if os.environ.get(VARIABLE) or ours(problem) is None:
        shell.showtraceback((kind, problem, trace), **given)
        return
    _show(kind, problem, trace)
