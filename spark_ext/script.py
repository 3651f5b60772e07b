"""A user's file that defines a job: load it as a module, find its function, and call it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spark_ext import worker_internals
from spark_ext.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ext.jobs.job import Job

KEPT = "nothing was started"


def check_file(file: Path) -> ModuleSpec:
    """Refuse a file that does not exist or is no Python file, before anything is started for it."""
    who = f"file '{file}'"
    if not file.is_file():
        raise refused(f"the file '{file}' does not exist", who, "correct the path", KEPT)
    # A prefix: a file called json.py must not replace the module json.
    spec = importlib.util.spec_from_file_location(f"spark_ext_script_{file.stem}", file)
    if spec is None or spec.loader is None:
        do = "use a .py file; export a notebook as one ('Export as source file')"
        raise refused(f"'{file}' is not a Python file", who, do, KEPT)
    return spec


def load_function(file: Path, name: str, **known: Any) -> Callable[..., Any]:
    """Load a Python file and return a function that it defines.

    The file does not run as `__main__`, so code under `if __name__ == "__main__":` is skipped. Its folder is put on the
    path, so that modules beside it can be imported in the driver. Its own functions are sent to the workers by value,
    as those of a script are. `known` is defined before the file runs, such as a notebook's `spark`.
    """
    spec = check_file(file)
    module = importlib.util.module_from_spec(spec)
    vars(module).update(known)
    # Before it runs: dataclasses look up their module by name.
    sys.modules[spec.name] = module
    worker_internals.pickle_by_value(module)
    sys.path.insert(0, str(file.resolve().parent))
    assert spec.loader is not None
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        do = f"define `def {name}(spark) -> Job`, or name another function with --function"
        raise refused(f"it has no function '{name}'", f"file '{file}'", do, KEPT)
    return cast("Callable[..., Any]", found)


def make_job(make: Callable[..., Any], spark: SparkSession, who: str) -> Job:
    """Call the user's function, which has to return a job; its own errors are not caught."""
    from spark_ext.jobs.job import Job

    made = make(spark)
    if not isinstance(made, Job):
        do = "return a job that has its queries and has not been started"
        raise refused(f"it returned {type(made).__name__}, not a Job", who, do, KEPT)
    return made
