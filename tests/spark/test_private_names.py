"""Each private name in the list is there in the installed Spark, and something uses it."""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import spark_ext
from spark_ext.spark.backend.missing import missing_name
from spark_ext.spark.backend.private_names import ABSENT, DRIVER, JVM, WORKERS, Names

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


RELEASE = ".".join(pyspark.__version__.split(".")[:2])


def absent(owner: str, names: str) -> set[str]:
    """Those names that the table says the installed Spark does not have."""
    return {name for name in names.split() if f"{owner}.{name}".endswith(tuple(ABSENT[RELEASE]))}


@pytest.mark.parametrize(("owner", "names"), [*pairs(DRIVER), *pairs(WORKERS)])
def test_pyspark_has_the_name_or_the_table_says_so(owner: str, names: str) -> None:
    try:
        found = resolved(owner)
        source = inspect.getsource(import_module(getattr(found, "__module__", owner)))  # some are set on each object
    except (ModuleNotFoundError, AttributeError):
        found, source = None, ""
    missing = {name for name in names.split() if not hasattr(found, name)}
    assert {name for name in missing if not re.search(rf"\bself\.{name}\b.* = ", source)} == absent(owner, names)


def test_something_uses_each_name() -> None:
    for names, text in ((DRIVER, BACKEND), (WORKERS, (PACKAGE / "worker_internals.py").read_text()), (JVM, BACKEND)):
        unused = {name for _, found in pairs(names) for name in found.split() if not re.search(rf"\b{name}\b", text)}
        # Spark's own page and JSON name these.
        assert not unused - {"info", "sqlExecutionId", "runId"}


@pytest.mark.parametrize(("owner", "name"), [("SparkSession", "_jsparkSession"), ("NoneType", None)])
def test_what_is_gone_is_no_missing_name(owner: str, name: str | None) -> None:
    """The context of a session that was stopped is None."""
    assert missing_name(AttributeError(f"'{owner}' object has no attribute '_jsparkSession'")) == name


def test_the_workers_half_imports_nothing_of_spark_itself() -> None:
    tree = ast.parse((PACKAGE / "worker_internals.py").read_text())
    modules = {one.module or "" for one in tree.body if isinstance(one, ast.ImportFrom)}
    assert not {module for module in modules if module.startswith(("pyspark", "py4j", "spark_ext"))}


def test_the_jvm_has_each_class_with_its_members(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    shown = java.scala.runtime.ScalaRunTime.stringOf
    for owner, names in pairs(JVM):
        if RELEASE == "4.0":
            owner = re.sub(r"streaming\.(runtime|checkpointing)\.", "streaming.", owner)
        try:
            kind = java.java.lang.Class.forName(owner)
        except Py4JJavaError:
            kind = None
        members = "" if kind is None else str(shown(kind.getMethods()))
        while kind is not None:
            members += f"{shown(kind.getDeclaredMethods())}{shown(kind.getDeclaredFields())}"
            kind = kind.getSuperclass()
        missing = {name for name in names.split() if not re.search(rf"\.{re.escape(name)}[(,)]", members)}
        assert missing == absent(owner, names), owner
