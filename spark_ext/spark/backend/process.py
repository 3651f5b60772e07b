"""What the driver asks of pyspark about its own process, without a session; what it says, and what it keeps quiet."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_ext.masking import mask
from spark_ext.spark.backend.missing import by_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit: a JVM runs already
_CONNECTIONS: Final = "py4j.clientserver"  # logger of py4j
LOCAL: Final = "local[*]"  # Spark's own default, and that of sessions
_MASTER: Final = "spark.master"

# A program that spark-submit runs, and that says which jars it was given.
PRINT_JARS: Final = """
from pyspark.java_gateway import launch_gateway
print("jars=" + str(launch_gateway().jvm.java.lang.System.getProperty("spark.jars")))
"""


@by_name
def has_jvm() -> bool:
    """Whether this process has a JVM, or was started by one. Does not import pyspark, which takes longer than this."""
    core = sys.modules.get("pyspark.core.context")  # not imported: this process has started no JVM
    return _GATEWAY in os.environ or (core is not None and core.SparkContext._gateway is not None)


@by_name
def installed_home() -> Path:
    """The directory of the installed pyspark's Spark, or SPARK_HOME."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


@by_name
def submitted_settings() -> dict[str, str]:
    """Settings of the JVM that has started this program: those of the command line and of its file of defaults.

    Empty unless spark-submit has started it. Spark takes them as defaults, which what a program sets overrides.
    """
    if _GATEWAY not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def master_of(submitted: Mapping[str, str]) -> str:
    """The master of a session for which the program names none."""
    asked = submitted.get(_MASTER, LOCAL)  # `local[*]` may be spark-submit's own default
    if asked != LOCAL:
        return asked
    return _of_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", "")) or os.environ.get("SPARK_MASTER") or LOCAL


def _of_arguments(arguments: str) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--master")
    parser.add_argument("--conf", "-c", action="append", default=[])
    try:
        found = parser.parse_known_args(shlex.split(arguments))[0]
    except (ValueError, SystemExit):
        return None  # Spark says what is wrong with them
    settings = dict(pair.split("=", 1) for pair in found.conf if "=" in pair)
    return found.master or settings.get(_MASTER)


@by_name
def session() -> SparkSession | None:
    """The active session of the calling thread, or else the first of this process; None: it has none."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession._instantiatedSession


@by_name
def local_property(name: str) -> str | None:
    """A local property of the calling thread; None if it has none, or Spark does not run."""
    core = sys.modules.get("pyspark.core.context")  # a client of Spark Connect may not have it
    context = None if core is None else core.SparkContext._active_spark_context
    return None if context is None or context._jsc is None else context.getLocalProperty(name)


_WARNING: Final = b"WARNING: Using incubator modules: "
_BOOT_WARNING: Final = re.compile(rb"^" + _WARNING + rb".*\n", re.MULTILINE)
_CHUNK: Final = 65_536  # bytes that are read at once


@contextlib.contextmanager
def without_boot_warning() -> Iterator[None]:
    """Start a JVM without what it says first of a module that Spark uses; all else it writes to standard error.

    Java has no switch for that. The JVM gets a pipe instead of standard error, for as long as it runs.
    """
    try:
        if has_jvm():
            raise OSError
        kept = os.dup(2)
    except OSError:  # or standard error is closed
        yield
        return
    ours, its = os.pipe()
    os.dup2(its, 2)
    os.close(its)
    threading.Thread(target=_forward, args=(ours, kept), name="spark-ext-jvm-output", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(kept, 2)


def _forward(source: int, target: int) -> None:
    """Copy until the end, without the first such warning."""
    held: bytes | None = b""  # the begin of a line that may be the warning; None: it has come
    while chunk := os.read(source, _CHUNK):
        if held is not None:
            chunk, found = _BOOT_WARNING.subn(b"", text := held + chunk, count=1)
            line = text[text.rfind(b"\n") + 1 :]
            held = None if found else line if _WARNING.startswith(line[: len(_WARNING)]) else b""
            chunk = chunk[: len(chunk) - len(held or b"")]
        _write(target, chunk)
    _write(target, held or b"")


def _write(target: int, chunk: bytes) -> None:
    # Whoever read it may be gone; what is written into the pipe is taken even so.
    with contextlib.suppress(OSError):
        os.write(target, chunk)


@by_name
def quiet_accumulators() -> None:
    """Let pyspark print no stack when a JVM that has ended closes the connection for accumulators."""
    from pyspark.accumulators import UpdateRequestHandler

    handle = UpdateRequestHandler.handle
    if handle.__name__ == "handle":

        def handle_until_closed(self: UpdateRequestHandler) -> None:
            with contextlib.suppress(EOFError, ConnectionError):
                handle(self)

        UpdateRequestHandler.handle = handle_until_closed  # type: ignore[method-assign]


@contextlib.contextmanager
def jvm_ended_with_its_start() -> Iterator[None]:
    """If the start of a JVM is interrupted, end it: pyspark would lose it, and it would wait without end."""
    import psutil  # not for commands that start no JVM

    before = {child.pid for child in psutil.Process().children(recursive=True)}
    try:
        yield
    except BaseException:
        if not has_jvm():
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if child.pid not in before:
                        child.kill()
        raise


@contextlib.contextmanager
def interrupts_as_before() -> Iterator[None]:
    """Take back pyspark's handler of Ctrl-C, which calls the JVM amid another call, and hide what py4j prints then."""
    before = signal.getsignal(signal.SIGINT)
    yield
    logging.getLogger().addFilter(lambda record: "KeyboardInterrupt while sending command" not in str(record.msg))
    logging.getLogger(_CONNECTIONS).setLevel(logging.CRITICAL)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


ANNOUNCED_EVERY: Final = 4.0  # s between two lines
_announcers: list[Callable[[str], None]] = []


@contextlib.contextmanager
def announced(what: str, *, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Say what is being done: at once, for each further text, and again every `ANNOUNCED_EVERY` s.

    Inside another one it takes its place. `quiet`: say nothing unless a person looks, or inside another one.
    """
    if _announcers:
        say = _announcers[-1]
        say(what)
        yield say
        return
    if quiet and not sys.stderr.isatty():
        yield lambda text: None
        return
    begun, ended, current = time.monotonic(), threading.Event(), [""]

    def say_new(text: str) -> None:
        if text != current[0]:
            current[0] = text
            _print(text)

    def repeat() -> None:
        while not ended.wait(ANNOUNCED_EVERY):
            minutes, seconds = divmod(round(time.monotonic() - begun), 60)
            _print(f"{current[0]}  {minutes}:{seconds:02d}")

    say_new(what)
    repeating = threading.Thread(target=repeat, name="spark-ext-announcer", daemon=True)
    repeating.start()
    _announcers.append(say_new)
    try:
        yield say_new
    finally:
        _announcers.remove(say_new)
        ended.set()
        repeating.join()


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody listens any more
        print("".join(one for one in mask(text) if one.isprintable()), file=sys.stderr, flush=True)
