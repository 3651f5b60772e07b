"""What pyspark's worker is relied on for: where it takes its serializers from, and what it reports."""

import inspect
import io
import re
import sys
import time
from collections.abc import Callable
from typing import IO, Any

import pyarrow as pa
import pytest
from pyspark import util, worker
from pyspark.sql.types import LongType, StructField, StructType

from spark_ext import worker_internals
from spark_ext.spark.backend.private_names import WORKERS
from spark_ext.worker_internals import before_each_task, extend_failures, report_without_waiting
from tests.support.missing_names import hide

NEWEST = pytest.mark.skipif("processing_time_ms" not in inspect.signature(worker.report_times).parameters, reason="4.2")


@NEWEST
def test_the_worker_has_the_expected_serializers_and_times() -> None:
    # `main` looks these functions up when it runs, so that another one can be put in their place before.
    source = inspect.getsource(getattr(worker, "invoke_udf", worker.main))  # 4.3 has taken it out of `main`
    assert "func, profiler, deserializer, serializer = read_udtf(" in source
    assert "func, profiler, deserializer, serializer = read_udfs(" in source
    assert re.search(r"deserializer\.load_stream\((infile|input_data_stream)\)", source)
    assert "serializer.dump_stream(out_iter, outfile)" in source
    assert "report_times(outfile, boot_time, init_time, finish_time, processing_time_ms)" in source
    assert list(inspect.signature(worker.report_times).parameters)[-1] == "processing_time_ms"


class Slow(io.BytesIO):
    """A stream that takes its time."""

    def read(self, size: int | None = -1) -> bytes:
        time.sleep(0.05)
        return super().read(size)

    def write(self, data: Any) -> int:
        time.sleep(0.05)
        return super().write(data)


class Bytes:
    """A serializer of single bytes."""

    name = "bytes"

    def load_stream(self, stream: IO[bytes]) -> Any:
        while found := stream.read(1):
            yield found

    def dump_stream(self, rows: Any, stream: IO[bytes]) -> None:
        for row in rows:
            stream.write(row)


def test_rows_that_another_thread_reads_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("function", None, Bytes(), Bytes())
    monkeypatch.setattr(worker, "read_udfs", lambda *_: given)
    monkeypatch.setattr(worker, "read_udtf", lambda *_: given)
    monkeypatch.setattr(worker, "report_times", worker.report_times)
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    report_without_waiting(lambda: True)
    assert worker.read_udfs(None, None) is given  # type: ignore[call-arg]


@pytest.mark.core
@pytest.mark.slow(0.7, "the time that is waited is what it measures")
@pytest.mark.parametrize("wanted", [True, False])
def test_waiting_for_rows_and_for_room_is_not_the_users_time(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    reported: list[int] = []
    given = ("function", None, Bytes(), Bytes())
    monkeypatch.setattr(worker, "read_udfs", lambda *_: given)
    monkeypatch.setattr(worker, "read_udtf", lambda *_: given)

    def report_times(outfile: object, boot: float, init: float, finish: float, processing_time_ms: int) -> None:
        reported.append(processing_time_ms)

    monkeypatch.setattr(worker, "report_times", report_times)
    report_without_waiting(lambda: wanted)
    for processing in (5_000, 10):
        given_out: Any = worker.read_udfs  # of pyspark's own, or of its replacement
        _, _, load, dump = given_out(None, None)
        out = Slow()
        dump.dump_stream(load.load_stream(Slow(b"abc")), out)
        assert out.getvalue() == b"abc" and load.name == "bytes"
        worker.report_times(None, 0, 0, 0, processing)
    if not wanted:
        assert reported == [5_000, 10]
    else:
        # Four reads and three writes; what is reported is never negative, and each task begins at 0.
        assert reported[0] <= 4_650 and reported[1] == 0


PROGRAMS = {
    "worker": "pyspark.worker",
    "planner": "pyspark.sql.streaming.python_streaming_source_runner",
    "committer": "pyspark.sql.worker.utils",
    "committer of 4.0 and 4.1": "pyspark.sql.worker.python_streaming_sink_runner",
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a daemon"])
@pytest.mark.parametrize("name", PROGRAMS.values(), ids=PROGRAMS)
def test_a_failure_passes_through_a_changed_handler(monkeypatch: pytest.MonkeyPatch, name: str, alone: bool) -> None:
    """As Spark's program has it, with one parameter more in front of the stream, and one behind it."""
    program = pytest.importorskip(name)
    written: list[tuple[object, ...]] = []

    def handler(e: BaseException, more: int, outfile: IO[bytes], hide: bool = False, *, last: int) -> None:
        written.append((e, more, hide, last))
        for part in (b"\xff\xff\xff\xfe", b"\x00\x00\x00\x02", b"no"):
            outfile.write(part)

    monkeypatch.setattr(worker_internals, "_handler", None)
    monkeypatch.setattr(util, "handle_worker_exception", handler)
    monkeypatch.setattr(program, "handle_worker_exception", handler, raising=False)
    if alone:
        monkeypatch.setitem(sys.modules, "__main__", program)
        monkeypatch.delitem(sys.modules, name)
    extend_failures(lambda error: " good")
    out, failure = io.BytesIO(), ValueError()
    program.handle_worker_exception(failure, 7, out, True, last=8)
    assert written == [(failure, 7, True, 8)]
    assert out.getvalue() == b"\xff\xff\xff\xfe\x00\x00\x00\x07no good"


@pytest.mark.parametrize(
    "name", [PROGRAMS["worker"], PROGRAMS["planner"], "pyspark.sql.worker.python_streaming_sink_runner"]
)
def test_a_program_of_another_patch_release_runs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its own `main`, which calls the handler that has one parameter more: the JVM sends nothing and has gone."""
    program = pytest.importorskip(name)
    reported: list[str] = []

    def handler(e: BaseException, outfile: IO[bytes], hide: bool | None = None, more: str = "own") -> None:
        reported.append(f"{type(e).__name__} {more}")
        for part in (b"\xff\xff\xff\xfe", b"\x00\x00\x00\x02", b"no"):
            outfile.write(part)

    monkeypatch.setattr(worker_internals, "_handler", None)
    for module in (util, sys.modules.get("pyspark.sql.worker.utils"), program):
        if hasattr(module, "handle_worker_exception"):
            monkeypatch.setattr(module, "handle_worker_exception", handler)
    extend_failures(lambda error: " good")
    out = io.BytesIO()
    with pytest.raises(SystemExit):
        program.main(io.BytesIO(), out)
    assert reported == ["EOFError own"]
    assert out.getvalue() == b"\xff\xff\xff\xfe\x00\x00\x00\x07no good"


def test_a_worker_of_another_patch_release_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function that is replaced has one parameter more, or is gone."""
    called: list[tuple[str, tuple[object, ...]]] = []
    monkeypatch.setattr(worker_internals, "_handler", None)

    def times(outfile: object, boot: float, init: float, finish: float, more: int, processing_time_ms: int) -> None:
        called.append(("times", (more, processing_time_ms)))

    monkeypatch.setattr(worker, "report_times", times)
    monkeypatch.setattr(worker, "setup_broadcasts", lambda *given: called.append(("broadcasts", given)))
    monkeypatch.setattr(worker, "read_udfs", lambda *given: ("function", None, Bytes(), Bytes(), "more"))

    def failed(e: BaseException, outfile: object, hide: bool, more: str) -> None:
        called.append(("failed", (hide, more)))

    monkeypatch.setattr(util, "handle_worker_exception", failed)
    monkeypatch.setattr(worker, "handle_worker_exception", util.handle_worker_exception)
    report_without_waiting(lambda: True)
    before_each_task(lambda: called.append(("task", ())))
    extend_failures(lambda error: "")
    replaced: Any = worker
    assert replaced.read_udfs(1, 2, 3)[-1] == "more"
    replaced.report_times(None, 0, 0, 0, 7, processing_time_ms=5)
    replaced.setup_broadcasts("in", "more")
    replaced.handle_worker_exception(ValueError(), None, True, "more")
    assert called == [("times", (7, 5)), ("broadcasts", ("in", "more")), ("task", ()), ("failed", (True, "more"))]
    for name in ("report_times", "setup_broadcasts", "read_udfs", "read_udtf"):
        monkeypatch.delattr(worker, name)
    monkeypatch.delattr(util, "handle_worker_exception")
    monkeypatch.setattr(worker_internals, "_handler", None)
    report_without_waiting(lambda: True)
    before_each_task(lambda: None)
    extend_failures(str)
    assert not hasattr(worker, "report_times")


ROWS = pa.RecordBatch.from_pylist([{"n": 1}])
SCHEMA = StructType([StructField("n", LongType())])
CALLS: dict[str, Callable[[], object]] = {
    "contract kits": lambda: worker_internals.unpickled(worker_internals.pickled(1)),
    "spark-ext run and register": lambda: worker_internals.pickle_by_value(worker_internals),
    "async_map": lambda: worker_internals.table_of(worker_internals.rows_of(ROWS, SCHEMA), SCHEMA),
    "sources and sinks": lambda: (
        worker_internals.from_arrow_type(worker_internals.to_arrow_type(LongType())),
        worker_internals.to_arrow_schema(SCHEMA),
    ),
    "failures": lambda: extend_failures(str),
    "parts of epochs": lambda: report_without_waiting(lambda: True),
    "stacks of workers": lambda: before_each_task(lambda: None),
}
NEVER = ("failures", "parts of epochs", "stacks of workers")
"""Features of each worker, which go on without them."""


@pytest.mark.parametrize(
    ("feature", "owner", "name"),
    [(one, owner, name) for one in CALLS for owner, text in WORKERS[one].items() for name in text.split()],
)
def test_a_missing_name_costs_what_needs_it(
    monkeypatch: pytest.MonkeyPatch, feature: str, owner: str, name: str
) -> None:
    for replaced in ("report_times", "setup_broadcasts", "read_udfs", "read_udtf"):
        monkeypatch.setattr(worker, replaced, getattr(worker, replaced))
    monkeypatch.setattr(worker_internals, "_handler", None)
    for module in filter(None, map(sys.modules.get, WORKERS["failures"])):
        if hasattr(module, "handle_worker_exception"):
            monkeypatch.setattr(module, "handle_worker_exception", module.handle_worker_exception)
    hide(monkeypatch, pytest.importorskip(owner), name, lambda: True)
    for other, call in CALLS.items():
        if other == feature and feature not in NEVER:
            with pytest.raises((AttributeError, ImportError), match=name):
                call()
        else:
            call()
