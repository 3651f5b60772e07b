"""A rule of `tools.rules`: only the two halves of the door to Spark use py4j and what pyspark does not document.

A private name is known by the installed pyspark, whose sources have it, unless this package has one of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.spark.backend.private_names import DRIVER, WORKERS

if TYPE_CHECKING:
    from tools.rules import File

HALVES: Final = ("spark_ext/spark/backend/", "spark_ext/worker_internals.py")

DOCUMENTED: Final = frozenset(
    {
        "pyspark",
        "pyspark.errors",
        "pyspark.sql",
        "pyspark.sql.datasource",
        "pyspark.sql.functions",
        "pyspark.sql.streaming",
        "pyspark.sql.streaming.datasource",
        "pyspark.sql.streaming.listener",
        "pyspark.sql.streaming.query",
        "pyspark.sql.streaming.readwriter",
        "pyspark.sql.types",
    }
)
"""Modules whose public names are in Spark's documentation."""

_LISTS: Final = (*DRIVER.values(), *WORKERS.values())

LISTED: Final = frozenset(name for owners in _LISTS for names in owners.values() for name in names.split())

OWNERS: Final = frozenset(owner for owners in _LISTS for owner in owners)

_PRIVATE: Final = frozenset(name for name in LISTED if name.startswith("_"))


def private_names(files: Iterable[File]) -> Iterator[str]:
    """Uses of py4j and of private names of pyspark outside the two halves."""
    for path, line, name in used([file for file in files if not file.path.startswith(HALVES)]):
        yield f"{path}:{line}: uses {name}: ask spark_ext.spark.backend or spark_ext.worker_internals for it"


def used(files: Sequence[File]) -> Iterator[tuple[str, int, str]]:
    """Uses of py4j and of private names of pyspark, by file and line."""
    own = {name for file in files for name in _defined(file.tree)}
    private = (_of_pyspark() - own) | _PRIVATE
    for file in files:
        for node, name in _used(file.tree, private):
            yield file.path, node.lineno, name


def _used(tree: ast.Module, private: frozenset[str]) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    others = {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                if _is_private(node.module, one.name):
                    yield node, f"{node.module}.{one.name}"
        elif isinstance(node, ast.Import):
            yield from ((node, one.name) for one in node.names if _is_private(one.name))
            others |= {one.asname or one.name for one in node.names if not _is_sparks(one.name)}
        elif isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
            yield from ((method, method.name) for method in methods if method.name in _PRIVATE)
        elif isinstance(node, ast.Constant) and (node.value in _PRIVATE or _is_module(str(node.value))):
            yield node, repr(node.value)  # as `getattr` and `sys.modules` take them
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in private and ast.unparse(node.value) not in others:
            yield node, ast.unparse(node)


def _is_sparks(module: str) -> bool:
    return module.partition(".")[0] in ("py4j", "pyspark")


def _is_private(module: str, name: str = "") -> bool:
    """Whether a module, or what is imported from it, is py4j's or not in Spark's documentation."""
    return _is_sparks(module) and (module not in DOCUMENTED or name.startswith("_") or _is_module(f"{module}.{name}"))


def _is_module(name: str) -> bool:
    """Whether pyspark has an undocumented module of this name."""
    if name in DOCUMENTED or not re.fullmatch(r"pyspark(\.\w+)+", name):
        return False
    path = _pyspark().joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def _defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines, as attributes as well."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@cache
def _pyspark() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


@cache
def _of_pyspark() -> frozenset[str]:
    """The private names in the sources of the installed pyspark, without its tests and what it bundles."""
    found: set[str] = set()
    for file in _pyspark().rglob("*.py"):
        if not {"tests", "cloudpickle"} & {*file.parts}:
            found.update(re.findall(r"\b_[a-zA-Z]\w*\b", file.read_text("utf-8")))
    return frozenset(found)
