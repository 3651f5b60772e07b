"""Determines what each test needs when it is collected, whether it is in the core, and in which worker it runs.

A test is marked `spark`, `server` (`tests.servers`), `process` or `table` (Delta) by the functions and classes of the
tests that it and its fixtures refer to, those that they refer to, and so on.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import pytest

from tests.support.slices import CORE, ROOT

SESSION: Final = "spark_of_process"  # the fixture of the Spark session
_OURS: Final = ("tests.", "spark_ext.testing.")
_SERVERS: Final = ("tests.servers.", "spark_ext.server.server")
_PROCESSES: Final = ("subprocess", "multiprocessing", "nbclient", "playwright")
_TABLES: Final = (
    "deltalake", "spark_ext.delta.", "spark_ext.ledger.", "spark_ext.control.log", "spark_ext.exchange.kinds",
)  # fmt: skip
_PURE: Final = ("spark_ext.ledger.schema", "spark_ext.ledger.columns", "deltalake.exceptions")
# Assumed cost of a test without `slow`, by the most expensive of its markers; without any marker it is near zero.
_SECONDS: Final = {"chaos": 60.0, "cluster": 30.0, "process": 4.0, "spark": 4.0, "server": 2.0}
_USES_BROKER: Final = re.compile(r"^from tests\.(servers\.kafka|sinks\.kafka_2pc|sources\.kafka_range)\b", re.MULTILINE)


@cache
def group(file: str) -> str:
    """The tests that run in one worker: those of a file, and all that use the Kafka broker, which is costly."""
    return "kafka" if _USES_BROKER.search((ROOT / file).read_text(encoding="utf-8")) else file


def pytest_configure(config: pytest.Config) -> None:
    """Workers take the groups in the order of `selection`, not by their number of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute groups of files, instead of files."""
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = lambda nodeid: group(nodeid.partition("::")[0])
    return scheduling


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark and order the tests, before `-m` selects."""
    for item in items:
        for name in sorted(_needs(item)):
            item.add_marker(name)
        if _is_core(item):
            item.add_marker(CORE)
    cost: dict[str, float] = {}
    for item in items:
        cost[group(_file(item))] = cost.get(group(_file(item)), 0.0) + _seconds(item)
    # The most expensive group first, so that no worker still has a long one when the others are done.
    items.sort(key=lambda item: (-cost[group(_file(item))], _file(item)))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _seconds(item: pytest.Item) -> float:
    slow = item.get_closest_marker("slow")
    if slow is not None:
        return float(slow.args[0])
    return next((cost for name, cost in _SECONDS.items() if item.get_closest_marker(name)), 0.02)


def _is_core(item: pytest.Item) -> bool:
    """Marked so, by itself or by a part of its name, or so cheap that all runs have it."""
    if any(part in item.name for marker in item.iter_markers("core_for") for part in marker.args):
        return True
    return not any(item.get_closest_marker(name) for name in ("slow", *_SECONDS))


def _needs(item: pytest.Item) -> set[str]:
    names = set(getattr(item, "fixturenames", ()))
    found = {"spark"} if SESSION in names else set()
    if item.get_closest_marker("cluster") or item.get_closest_marker("chaos"):
        found.add("process")
    for function in _functions(item, names):
        found |= _uses(function)
    return found


def _functions(item: pytest.Item, names: set[str]) -> Iterator[Callable[..., Any]]:
    if isinstance(item, pytest.Function):
        yield item.function
        for name, fixtures in item._fixtureinfo.name2fixturedefs.items():
            if name in names:
                yield from (fixture.func for fixture in fixtures)


@cache
def _uses(function: Callable[..., Any]) -> frozenset[str]:
    """Which of the markers `process`, `server` and `table` a function needs."""
    found: set[str] = set()
    todo: list[Any] = [getattr(function, "__func__", function)]
    seen: set[Any] = set(todo)
    while todo:
        markers, others = _direct(todo.pop())
        found |= markers
        todo += others - seen
        seen |= others
    return frozenset(found)


@cache
def _direct(one: FunctionType | type) -> tuple[frozenset[str], frozenset[FunctionType | type]]:
    """What one function or class uses itself: its markers, and the functions and classes of the tests."""
    if not _is_ours(one.__module__):
        return frozenset(), frozenset()
    if one.__module__.startswith(_SERVERS):
        return frozenset({"server"}), frozenset()
    found: set[str] = set()
    others: set[FunctionType | type] = set()
    names = _names(inspect.unwrap(one).__code__) if isinstance(one, FunctionType) else ()
    if any(name.partition(".")[0] in _PROCESSES for name in names):  # imported in the function
        found.add("process")
    for value in _named(one):
        value = getattr(value, "__func__", value)
        module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if str(module).partition(".")[0] in _PROCESSES:
            found.add("process")
        elif str(module).startswith(_TABLES) and not str(module).startswith(_PURE):
            found.add("table")
        elif isinstance(value, (FunctionType, type)):
            if value.__module__.startswith(_SERVERS):
                found.add("server")  # not `process`, which is for processes that the test starts itself
            elif _is_ours(value.__module__):
                others.add(value)
    return frozenset(found), frozenset(others)


def _is_ours(module: str) -> bool:
    return f"{module}.".startswith(_OURS)


def _named(one: FunctionType | type) -> Iterator[Any]:
    """All globals that a function refers to; for a class, its functions and those of its bases."""
    if isinstance(one, type):
        for base in filter(lambda base: _is_ours(base.__module__), one.__mro__):
            yield from (value.fget if isinstance(value, property) else value for value in vars(base).values())
        return
    function = inspect.unwrap(one)
    names = _names(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        yield value
        if isinstance(value, ModuleType) and _is_ours(value.__name__):
            # As in `pages.run`: a name next to the module may be an attribute of it.
            yield from (getattr(value, other, None) for other in names)


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(const) for const in code.co_consts if isinstance(const, CodeType)))
