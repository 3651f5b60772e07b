"""Settings of a session that hold for one query: there while it is built and started, and put back afterwards.

Spark copies the session when a query starts, and runs the query's epochs in the copy. So a setting has to be in the
session for a moment. No other query of this process is built or started in that moment.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from spark_ext.errors import ConfigurationError, refused
from spark_ext.masking import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger("spark_ext.session")

KEPT = "nothing was started with it"


class _Turns:
    """Any number of queries may start at the same time, or one that has settings of its own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shared = 0
        self._alone: int | None = None  # the thread that has a turn of its own; it may take it again

    @contextmanager
    def shared(self) -> Iterator[None]:
        mine = self._alone == threading.get_ident()
        if not mine:
            with self._changed:
                self._changed.wait_for(lambda: self._alone is None)
                self._shared += 1
        try:
            yield
        finally:
            if not mine:
                with self._changed:
                    self._shared -= 1
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._alone is None and not self._shared)
            self._alone = me
        try:
            yield
        finally:
            with self._changed:
                self._alone = None
                self._changed.notify_all()


_turns = _Turns()


@contextmanager
def with_settings(
    spark: SparkSession, settings: Mapping[str, str], who: str, wished: Mapping[str, str] = {}
) -> Iterator[None]:
    """Build or start one query in the block, with settings of its own. Waits while others do so with theirs.

    Without settings several threads may be in such blocks. `wished` are set if the platform lets a session do so.
    """
    if not settings and not wished:
        with _turns.shared():
            yield
        return
    with _turns.alone():
        before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
        try:
            for name in wished.keys() - settings.keys():
                former = spark.conf.get(name, None)
                with suppress(Exception):
                    spark.conf.set(name, wished[name])
                    before[name] = former
            for name, value in settings.items():
                _set(spark, name, value, who)
            yield
        finally:
            for name, former in before.items():
                if former is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, former)


_OPEN: Final = ("spark.sql.catalog.", "spark.sql.streaming.stateStore.rocksdb.")  # where any name may be read


def refuse_misspelled(spark: SparkSession, names: Iterable[str]) -> None:
    """Refuse settings of Spark SQL that Spark does not know, and that are almost called like one that it knows."""
    asked = [name for name in names if name.startswith("spark.sql.") and not name.startswith(_OPEN)]
    other = spark.newSession() if asked else spark
    unknown = [name for name in asked if not _has_default(other, name)]
    known = [str(row.key) for row in spark.sql("SET -v").collect()] if unknown else []
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        if near and name not in known:
            what = f"Spark has no setting '{name}'; did you mean '{near[0]}'?"
            raise refused(what, "the Spark session", "correct the name where the session is made")


def _has_default(spark: SparkSession, name: str) -> bool:
    with suppress(Exception):  # as of a static one
        spark.conf.unset(name)
    try:
        spark.conf.get(name)
    except Exception:
        return False
    return True


def set_defaults(spark: SparkSession, values: Mapping[str, str]) -> None:
    """Set what a job can do without. A platform may keep settings from its users: one line says which."""
    kept = []
    for name, value in values.items():
        try:
            spark.conf.set(name, value)
        except Exception:
            kept.append(f"{name} {value}")
    if kept:
        log.warning(
            "this session does not let its users set what it would be given; it keeps its own: %s", "; ".join(kept)
        )


def _set(spark: SparkSession, name: str, value: str, who: str) -> None:
    if not spark.conf.isModifiable(name):
        raise ConfigurationError(
            f"'{name}' is not a setting of a session: Spark does not know it, or sets it once for all sessions",
            operator=who,
            kept=KEPT,
            do="correct the name; static settings need a new session",
        )
    try:
        spark.conf.set(name, value)
    except Exception as problem:
        raise ConfigurationError(
            f"Spark does not take '{value}' for '{name}': {str(problem).splitlines()[0][:300]}",
            operator=who,
            kept=KEPT,
            do="correct the value",
        ) from None
