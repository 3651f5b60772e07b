"""Rules on the rows that a query writes: how they travel from a frame to its sink, and what a task of the sink does.

The frame has one more column, `COLUMN`: null for a row that passes all rules, else the numbers of those that it fails.
Its metadata are the rules, so that they are known wherever the schema is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from spark_ext.bad_rows.epoch import SinkPlace
from spark_ext.bad_rows.names import failures_name
from spark_ext.bad_rows.row import BadRow
from spark_ext.bad_rows.sift import text_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OnFail: TypeAlias = Literal["quarantine", "drop", "fail", "count"]
COLUMN: Final = "__spark_ext_rules"
METADATA: Final = "spark_ext.rules"
_SHOWN: Final = 1_000  # characters of an example


@dataclass(frozen=True)
class Rule:
    """A condition that rows should meet."""

    name: str
    predicate: str  # SQL; a row passes if it is true, and fails if it is false or null
    on_fail: OnFail  # what becomes of a row that fails
    max_share: float = 1.0  # of failing rows among all rows of a run; above it the job stops

    @property
    def said(self) -> str:
        """The rule, for messages."""
        return f"rule '{self.name}' ({self.predicate})"

    def exceeded(self, failed: int, rows: int) -> str | None:
        """Why the job has to stop, for a message; None: it may go on."""
        if self.on_fail == "fail":
            return f"{failed} of {rows} rows fail {self.said}" if failed else None
        if failed <= self.max_share * rows:
            return None
        return f"{failed} of {rows} rows fail {self.said}: {failed / rows:.2%}, more than max_share={self.max_share:g}"


@dataclass(frozen=True)
class Failures:
    """How many rows of a task, an epoch or a run fail each rule."""

    rows: int = 0  # all rows
    failed: Mapping[str, int] = field(default_factory=dict)  # by the name of the rule, only if any row fails it
    examples: Mapping[str, str] = field(default_factory=dict)  # by the name of the rule, one row that fails it

    def __add__(self, other: Failures) -> Failures:
        both = {name: self.failed.get(name, 0) + other.failed.get(name, 0) for name in {**self.failed, **other.failed}}
        return Failures(self.rows + other.rows, both, {**other.examples, **self.examples})


NO_FAILURES: Final = Failures()


def to_metadata(rules: Iterable[Rule]) -> dict[str, str]:
    """The metadata of the column."""
    return {METADATA: json.dumps([asdict(rule) for rule in rules])}


def rules_of(schema: StructType) -> tuple[Rule, ...]:
    """The rules of the rows of a schema."""
    found = next((one.metadata.get(METADATA) for one in schema.fields if one.name == COLUMN and one.metadata), None)
    return () if found is None else tuple(Rule(**rule) for rule in json.loads(found))


def without_rules(schema: StructType) -> StructType:
    """The schema of the rows as they are written."""
    if not rules_of(schema):
        return schema
    return type(schema)([one for one in schema.fields if one.name != COLUMN])


class Judge:
    """Carries out the rules of one task. Spark has judged; see `COLUMN`."""

    def __init__(self, rules: Sequence[Rule], partition: int, put_aside: Callable[[BadRow], object]) -> None:
        self._rules, self._partition, self._put_aside = rules, partition, put_aside
        self._leaving = self._numbers("quarantine", "drop")
        self._aside = self._numbers("quarantine")
        self._rows = 0
        self._failed = [0] * len(rules)
        self._examples: dict[str, str] = {}

    def _numbers(self, *on_fail: str) -> list[int]:
        return [number for number, rule in enumerate(self._rules) if rule.on_fail in on_fail]

    @property
    def failures(self) -> Failures:
        """What was counted so far."""
        failed = {rule.name: count for rule, count in zip(self._rules, self._failed, strict=True) if count}
        return Failures(self._rows, failed, self._examples)

    def good(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that are written, in order, without the column."""
        for batch in batches:
            judged = batch.column(COLUMN)
            rows = batch.drop_columns([COLUMN])
            if judged.null_count < len(judged):
                rows = self._carried_out(rows, judged)
            self._rows += len(judged)
            yield rows

    def _carried_out(self, rows: pa.RecordBatch, judged: pa.Array) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = pc.list_flatten(judged).to_numpy(zero_copy_only=False)
        owners = pc.list_parent_indices(judged).to_numpy(zero_copy_only=False)
        for number, count in enumerate(np.bincount(numbers, minlength=len(self._rules)).tolist()):
            self._failed[number] += count
        for number in set(numbers.tolist()):
            if self._rules[number].name not in self._examples:
                first = int(owners[numbers == number][0])
                self._examples[self._rules[number].name] = text_of(rows.slice(first, 1))[:_SHOWN]
        for row in np.unique(owners[np.isin(numbers, self._aside)]).tolist():
            failed = [self._rules[number] for number in judged[row].as_py()]
            position = {"partition": self._partition, "row": self._rows + row}
            reason = "fails " + ", ".join(rule.said for rule in failed)
            self._put_aside(BadRow(position, reason, text_of(rows.slice(row, 1)), tuple(rule.name for rule in failed)))
        stays = np.ones(rows.num_rows, bool)
        stays[owners[np.isin(numbers, self._leaving)]] = False
        return rows if stays.all() else rows.filter(pa.array(stays))


def leave_failures(place: SinkPlace, failures: Failures, *, again: bool) -> None:
    """Leave what was counted in an epoch that the target has, until Spark has committed it.

    `again`: another attempt has committed it. What that has left counts, as the rules may be others by now.
    """
    said = json.dumps({"rows": failures.rows, "failed": dict(failures.failed)}).encode()
    try:
        if again:
            place.folder.create_once(failures_name(place.name), said, durable=True)
        else:
            place.folder.write(failures_name(place.name), said, durable=True)
    except OSError as problem:
        raise place.unwritable(problem) from problem
