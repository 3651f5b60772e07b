"""`async_map`: call an async function for each row, many at a time, inside one epoch.

For look-ups in a service: one coroutine per row, at most `concurrency` at once per task. An epoch's task ends only when
all its calls have ended, so their rows are committed with that epoch, and no call is in flight at the end of input. The
parameters (ordered or not, capacity, timeout) are those of Flink's AsyncDataStream.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from pyspark.sql import Row
from pyspark.sql.types import StructType

from spark_ext import worker_internals
from spark_ext.errors import DataError, SparkExtError, TransientError, refused
from spark_ext.failures import record

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# A row of the output schema, or None to drop the input row.
Result: TypeAlias = "Mapping[str, Any] | tuple[Any, ...] | None"

AHEAD: Final = 2  # input batches that are processed at once: one starts while the last rows of another are awaited
_KEPT: Final = "nothing was started"
_SHOWN: Final = 200


def async_map(
    df: DataFrame,
    fn: Callable[[Row], Awaitable[Result]],
    schema: StructType | str,
    *,
    concurrency: int = 64,
    ordered: bool = True,
    timeout: float | None = None,
) -> DataFrame:
    """Map each row by an async function.

    Each task has one event loop, in its own thread, so calls continue while Spark reads and writes. Memory: at most two
    Arrow batches of input and their results per task (`spark.sql.execution.arrow.maxRecordsPerBatch` rows each). A
    replayed epoch repeats its calls: `fn` is called at least once per row.

    The result has no watermark: use it before `with_watermark`.

    Args:
        df: batch or streaming.
        fn: `async def fn(row: Row) -> dict | tuple | None`; None drops the row.
        schema: of the result.
        concurrency: maximum number of calls in flight per task.
        ordered: whether results are in the order of the input; otherwise in the order in which calls end.
        timeout: time limit for one call, s; None: no limit.

    Raises:
        ConfigurationError: `fn` is not async, or a number is out of range. While the query runs, a call that fails or
            times out cancels the others and fails the epoch with an error that names the row. What follows depends on
            what the function raised, as for any function (see the table of decisions); a call that timed out is a
            `TransientError`, and the epoch is retried.
    """
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    who = f"async_map of {name}"
    if not (inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))):  # noqa: B004
        raise refused(f"'{name}' is not an async function", who, "declare it with 'async def'", _KEPT)
    if concurrency < 1:
        raise refused(f"concurrency is {concurrency}", who, "use a number of at least 1", _KEPT)
    if timeout is not None and timeout <= 0:
        raise refused(f"timeout is {timeout}", who, "use a number of seconds above 0, or None", _KEPT)
    target = cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    return df.mapInArrow(_AsyncMap(fn, df.schema, target, concurrency, ordered, timeout, who), target)


@dataclass(frozen=True)
class _AsyncMap:
    fn: Callable[[Row], Awaitable[Result]]
    source: StructType
    target: StructType
    concurrency: int
    ordered: bool
    timeout: float | None
    who: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        record.install()
        loop: _Loop | None = None
        work: list[Future[list[Any]]] = []
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if loop is None:
                    loop, gate = _Loop(), asyncio.Semaphore(self.concurrency)
                work.append(loop.run(self._map(worker_internals.rows_of(batch, self.source), gate)))
                while len(work) >= AHEAD:
                    yield from self._take(work)
            while work:
                yield from self._take(work)
        finally:
            if loop is not None:
                loop.close()

    def _take(self, work: list[Future[list[Any]]]) -> Iterator[pa.RecordBatch]:
        """The results of one batch: of the oldest one, or of one that is complete."""
        done = work[0] if self.ordered else next(iter(wait(work, return_when=FIRST_COMPLETED).done))
        work.remove(done)
        rows = done.result()
        if rows:
            yield from self._arrow(rows)

    async def _map(self, rows: Iterable[Row], gate: asyncio.Semaphore) -> list[Any]:
        """All calls of one batch; `gate` is shared by all batches and limits the number of calls."""
        results: list[Any] = []
        failures: list[Exception] = []
        running: set[asyncio.Task[None]] = set()

        async def one(row: Row, slot: int | None) -> None:
            try:
                result = await self._call(row)
                if slot is not None:
                    results[slot] = result
                elif result is not None:
                    results.append(result)
            except asyncio.CancelledError:
                # Also if the function cancelled itself: its row must not be lost silently.
                failures.append(self._failed(row, "it was cancelled"))
            except Exception as failure:
                failures.append(failure)
            finally:
                gate.release()

        try:
            for row in rows:
                await gate.acquire()
                if failures:
                    gate.release()
                    break
                slot = None
                if self.ordered:
                    slot = len(results)
                    results.append(None)
                task = asyncio.ensure_future(one(row, slot))
                running.add(task)
                task.add_done_callback(running.discard)
            while running and not failures:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if failures:
                raise failures[0]
        finally:
            for task in running:
                task.cancel()
        return [result for result in results if result is not None]

    async def _call(self, row: Row) -> Result:
        try:
            return await asyncio.wait_for(self.fn(row), self.timeout)
        except SparkExtError:
            raise
        except asyncio.TimeoutError as late:
            if self.timeout is None:
                raise self._failed(row, f"{type(late).__name__}: {late}") from late
            raise self._failed(row, f"it took longer than {self.timeout:g} s", TransientError) from late
        except Exception as failure:
            raise self._failed(row, f"{type(failure).__name__}: {failure}") from failure

    def _failed(self, row: Row, why: str, kind: type[SparkExtError] = SparkExtError) -> SparkExtError:
        return kind(
            f"the call failed: {why}",
            operator=f"{self.who}, {_shown(row)}",
            kept="no row of this epoch was committed; the other calls of its task were cancelled",
            do="nothing if it is temporary: the epoch will be retried; else handle the failure in the function",
        )

    def _arrow(self, rows: list[Any]) -> Iterator[pa.RecordBatch]:
        try:
            table = worker_internals.table_of(rows, self.target)
            for row, made in zip(rows, table.to_pylist(), strict=True):
                _refuse_changed(row, made)
        except Exception as problem:
            raise DataError(
                f"a result does not fit the schema: {type(problem).__name__}: {problem}",
                operator=self.who,
                kept="no row of this epoch was committed",
                do=f"return a dict or tuple of: {self.target.simpleString()[:_SHOWN]}",
            ) from problem
        yield from table.to_batches()


def _refuse_changed(given: Any, made: Any) -> None:
    """Refuse what the conversion to Arrow has changed: it rounds, cuts off, and omits what the schema does not have."""
    if isinstance(given, Mapping):
        # Of a map Arrow has pairs.
        pairs = made if isinstance(made, dict) else dict(zip(given, (one for _, one in made), strict=True))
        if unknown := [name for name in given if name not in pairs]:
            raise ValueError(f"unknown field '{unknown[0]}'")
        for name in given:
            _refuse_changed(given[name], pairs[name])
    elif isinstance(made, (dict, list)) and isinstance(given, (tuple, list)):
        for one, other in zip(given, made.values() if isinstance(made, dict) else made, strict=True):
            _refuse_changed(one, other)
    elif not _is_same(given, made):
        raise ValueError(f"{given!r} would be {made!r}")


def _is_same(given: Any, made: Any) -> bool:
    if isinstance(given, float) and isinstance(made, float):  # which may have 32 bits
        return math.isinf(given) == math.isinf(made)
    if isinstance(given, (int, float, Decimal)):
        return isinstance(made, str) or given == made
    if isinstance(given, (str, bytes)):
        return isinstance(made, str if isinstance(given, str) else bytes)
    return not isinstance(given, datetime) or isinstance(made, (datetime, str)) or given.time() == time.min


def _shown(row: Row) -> str:
    text = repr(row)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="spark-ext-async-map", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Start a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel the remaining work, wait until it has ended, and end the thread."""
        self.run(self._cancel_all()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
