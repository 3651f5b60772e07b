"""Drivers in separate processes, to be killed or frozen at a fail point.

    with Child(run, target, env={...}) as child:
        said = child.wait()

A child runs a function of an importable module with picklable arguments. At the end of its `with`, all its processes
have been terminated.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from spark_ext import failpoints
from spark_ext.errors import FencedError, from_text
from spark_ext.testing.waiting import until

LIMIT = 120.0
"""Seconds after which a running child counts as hanging."""


class Child:
    """A function that runs in a fresh Python process.

    Args:
        function: a module-level function; it must be picklable, and so must its arguments.
        args: its arguments.
        env: additional environment variables.
    """

    def __init__(self, function: Callable[..., object], *args: object, env: Mapping[str, str] | None = None) -> None:
        modules = {name: _file_of(name) for name in {type(arg).__module__ for arg in args} | {function.__module__}}
        self._said: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed by __exit__)
        with tempfile.TemporaryFile() as brief:
            pickle.dump({name: file for name, file in modules.items() if file}, brief)
            pickle.dump((function, args), brief)
            brief.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from spark_ext.testing.children import main; main()"],
                stdin=brief,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def poll(self) -> int | None:
        """The exit code; None while the child runs. A signal gives a negative number."""
        return self._process.poll()

    def text(self) -> str:
        """Its output so far, errors included."""
        self._said.seek(0)
        return self._said.read()

    def wait(self) -> str:
        """Wait until the child ends; returns its output.

        Raises:
            subprocess.TimeoutExpired: the child hangs.
        """
        self._process.wait(LIMIT)
        return self.text()


def _file_of(module: str) -> str | None:
    """The file of a module, for a child that may be unable to import it by name."""
    file = getattr(sys.modules[module], "__file__", None)
    return str(file) if file else None


def main() -> None:
    """Entry point of the child process."""
    for name, file in pickle.load(sys.stdin.buffer).items():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            # A test file that pytest has loaded under its own name.
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    function, args = pickle.load(sys.stdin.buffer)
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
