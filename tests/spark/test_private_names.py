"""Each private name in the list is there in the installed Spark, and something uses it."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_ext
from spark_ext.spark.backend.private_names import DRIVER, JVM, WORKERS, Names

PACKAGE = Path(spark_ext.__file__).parent
BACKEND = "\n".join(
    path.read_text() for path in (PACKAGE / "spark/backend").rglob("*.py") if path.name != "private_names.py"
)


def pairs(names: Names) -> list[tuple[str, str]]:
    """Each owner, with its names."""
    return sorted((owner, text) for owners in names.values() for owner, text in owners.items())


def resolved(owner: str) -> Any:
    """A module, or a class of one."""
    try:
        return import_module(owner)
    except ModuleNotFoundError:
        module, _, kind = owner.rpartition(".")
        return getattr(import_module(module), kind)


@pytest.mark.parametrize(("owner", "names"), [*pairs(DRIVER), *pairs(WORKERS)])
def test_pyspark_has_the_name(owner: str, names: str) -> None:
    found = resolved(owner)
    for name in names.split():
        if not hasattr(found, name):
            source = inspect.getsource(import_module(found.__module__))  # set on each object
            assert re.search(rf"\bself\.{name}\b.* = ", source), f"{owner} has no {name}"


def test_something_uses_each_name() -> None:
    for names, text in ((DRIVER, BACKEND), (WORKERS, (PACKAGE / "worker_internals.py").read_text()), (JVM, BACKEND)):
        unused = {name for _, found in pairs(names) for name in found.split() if not re.search(rf"\b{name}\b", text)}
        # Spark's own page and JSON name these.
        assert not unused - {"info", "sqlExecutionId", "runId"}


def test_the_workers_half_imports_nothing_of_spark_itself() -> None:
    tree = ast.parse((PACKAGE / "worker_internals.py").read_text())
    modules = {one.module or "" for one in tree.body if isinstance(one, ast.ImportFrom)}
    assert not {module for module in modules if module.startswith(("pyspark", "py4j", "spark_ext"))}


def test_the_jvm_has_each_class_with_its_members(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    missing = []
    for owner, names in pairs(JVM):
        kind, shown = java.java.lang.Class.forName(owner), java.scala.runtime.ScalaRunTime.stringOf
        members = str(shown(kind.getMethods()))
        while kind is not None:
            members += f"{shown(kind.getDeclaredMethods())}{shown(kind.getDeclaredFields())}"
            kind = kind.getSuperclass()
        missing += [f"{owner}.{name}" for name in names.split() if not re.search(rf"\.{re.escape(name)}[(,)]", members)]
    assert not missing
