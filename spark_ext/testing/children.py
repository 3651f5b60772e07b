"""Drivers in separate processes, to be killed or frozen at a fail point.

    with Child(run, target, env={...}) as child:
        said = child.wait()

A child runs a function of an importable module with picklable arguments. At the end of its `with`, its process has been
terminated.

Children are forked by the fork server of Python's multiprocessing, a process that has imported what a driver needs:
importing takes a second, longer than most of what children do.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

from spark_ext import failpoints
from spark_ext.errors import FencedError, from_text
from spark_ext.testing.waiting import until

LIMIT = 300.0
"""Seconds after which a running child counts as hanging."""

_FORKING: Final = multiprocessing.get_context("forkserver")
_PRELOADED: Final = [
    "pytest",
    "deltalake",
    "pandas",  # imported by Arrow when it converts values, which takes longer than most epochs
    "pyarrow.pandas_compat",
    "spark_ext.testing.sink_contract",
    # What the package's own sinks import when it is needed; what is not installed is left out.
    "confluent_kafka.admin",
    "httpcore",
    "psycopg",
    "spark_ext.delta.optimize",
    "spark_ext.delta.upkeep",
    "spark_ext.delta.sink_table",
    "spark_ext.sinks.http_2pc.sink",
    "spark_ext.sinks.kafka_2pc.producer",
    "spark_ext.sinks.kafka_2pc.sink",
    "spark_ext.sinks.postgres_2pc.claim",
    "spark_ext.sinks.postgres_2pc.sink",
]
_starting: Final = threading.Lock()


class Child:
    """A function that runs in a new Python process, which shares nothing with this one.

    Args:
        function: a module-level function; it must be picklable, and so must its arguments.
        args: its arguments.
        env: additional environment variables.
    """

    def __init__(self, function: Callable[..., object], *args: object, env: Mapping[str, str] | None = None) -> None:
        modules = {name: _file_of(name) for name in {type(arg).__module__ for arg in args} | {function.__module__}}
        self._said = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115 (closed by __exit__)
        brief = pickle.dumps((function, args))
        given = {**os.environ, **(env or {})}
        self._process = _FORKING.Process(target=_run, args=(self._said.name, given, modules, brief), daemon=True)
        # A child would otherwise run the test program's main module again, to unpickle what is defined there.
        with _starting:
            _FORKING.set_forkserver_preload(_PRELOADED)
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                self._process.start()
            finally:
                sys.modules["__main__"] = main

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._said.close()

    def poll(self) -> int | None:
        """The exit code; None while the child runs. A signal gives a negative number."""
        return self._process.exitcode

    def text(self) -> str:
        """Its output so far, errors included."""
        self._said.seek(0)
        return self._said.read()

    def wait(self) -> str:
        """Wait until the child ends; returns its output.

        Raises:
            TimeoutError: the child hangs.
        """
        self._process.join(LIMIT)
        if self._process.exitcode is None:
            raise TimeoutError(f"a child has not ended within {LIMIT:.0f} s:\n{self.text()}")
        return self.text()


def _file_of(module: str) -> str | None:
    """The file of a module, for a child that may be unable to import it by name."""
    file = getattr(sys.modules[module], "__file__", None)
    return str(file) if file else None


def _run(output: str, env: dict[str, str], modules: dict[str, str | None], brief: bytes) -> None:
    """What a child does."""
    said = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.clear()
    os.environ.update(env)
    for name, file in modules.items():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            if file is None:
                raise
            # A test file that pytest has loaded under its own name.
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    function, args = pickle.loads(brief)
    function(*args)


def killed_at(point: str, function: Callable[..., object], *args: object, env: Mapping[str, str] | None = None) -> None:
    """Run a child until it is killed at the named fail point.

    Raises:
        AssertionError: it was not killed, because it failed before the fail point or never reached it.
    """
    with Child(function, *args, env={**(env or {}), failpoints.VARIABLE: f"{point}=kill"}) as child:
        said = child.wait()
        if child.poll() != -signal.SIGKILL:
            raise AssertionError(
                f"the process should have been killed at '{point}', but exited with {child.poll()}:\n{said}"
            )


class Frozen:
    """A child that waits at a fail point until it is released."""

    def __init__(self, child: Child, gate: Path) -> None:
        self._child, self._gate = child, gate

    def wake(self) -> str:
        """Let it continue and wait until it ends; returns its output."""
        self._gate.touch()
        return self._child.wait()


@contextmanager
def frozen(
    folder: Path, point: str, function: Callable[..., object], *args: Any, env: Mapping[str, str] | None = None
) -> Iterator[Frozen]:
    """A child that has reached the named fail point and waits there.

    Args:
        folder: an existing directory for the gate.
        point: the fail point.
        function: the function to run.
        args: its arguments.
        env: additional environment variables.

    Raises:
        AssertionError: the child ended before it reached the fail point.
    """
    gate = folder / f"gate-{point}"
    waiting = gate.with_name(gate.name + ".waiting")
    with Child(function, *args, env={**(env or {}), failpoints.VARIABLE: f"{point}=wait:{gate}"}) as child:
        until(lambda: waiting.exists() or child.poll() is not None, f"a process waiting at '{point}'")
        if not waiting.exists():
            raise AssertionError(
                f"the process should have waited at '{point}', but exited with {child.poll()}:\n{child.text()}"
            )
        yield Frozen(child, gate)


def was_fenced(said: str) -> bool:
    """Whether a child's last error says that a newer incarnation has fenced it off."""
    return isinstance(from_text(said), FencedError)
