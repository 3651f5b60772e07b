"""Finds the rows of a batch that cannot be converted, by pieces and halves: few bad rows cost few conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
PIECE: Final = 1_024  # rows that are converted at a time


def sift(
    batch: pa.RecordBatch,
    convert: Callable[[pa.RecordBatch], T],
    fails: type[Exception] | tuple[type[Exception], ...],
    bad: Callable[[int, pa.RecordBatch, Exception], object],
) -> Iterator[T]:
    """What the rows that can be converted become, in order; `fails` is what `convert` raises for others."""
    # In pieces first: by halves alone the good rows would be converted as often as there are levels.
    left = [(low, min(low + PIECE, batch.num_rows)) for low in range(0, batch.num_rows, PIECE)][::-1]
    while left:
        low, high = left.pop()
        try:
            yield convert(batch.slice(low, high - low))
        except fails as problem:
            if high - low == 1:
                bad(low, batch.slice(low, 1), problem)
            else:
                middle = (low + high) // 2
                left += [(middle, high), (low, middle)]


def text_of(row: pa.RecordBatch) -> str:
    """A row as JSON; see `json_of`."""
    return json_of({name: _value(column[0]) for name, column in zip(row.schema.names, row.columns, strict=True)})


def json_of(values: Mapping[str, object]) -> str:
    """A row as JSON, with texts for values that JSON does not have: a time is ISO 8601, in UTC if it has a zone."""
    import json

    return json.dumps({name: _finite(value) for name, value in values.items()}, default=_as_text)


def _as_text(value: object) -> str:
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(timezone.utc)).isoformat()
    return str(value)


def _value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return _unreadable(scalar)


def _finite(value: object) -> object:
    """A value with NaN and infinities as texts, at any depth."""
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _unreadable(scalar: pa.Scalar) -> object:
    """A value with one in it that Python does not have: a time, as days or microseconds since 1970; bytes as text."""
    import pyarrow as pa

    kind = scalar.type
    if hasattr(scalar, "as_buffer"):
        return repr(scalar.as_buffer().to_pybytes())
    if pa.types.is_dictionary(kind):
        return _unreadable(scalar.dictionary[scalar.index.as_py()])
    if pa.types.is_struct(kind):
        return {field.name: _value(scalar[number]) for number, field in enumerate(kind)}
    if pa.types.is_nested(kind):
        return [_value(item) for item in scalar.values]
    return f"{kind} {scalar.value}"


Bad = Callable[[int, "pa.RecordBatch", Exception], object]
"""Takes the number of a row, the row as a batch of its own, and what is wrong with it."""


def behind(bad: Bad, first: int) -> Bad:
    """The same for the rows of a batch that is not the first."""
    return lambda row, one, problem: bad(first + row, one, problem)


class Numbered:
    """Batches of a task without rows that a check refuses; counts, so that a bad row is found in its input again."""

    def __init__(
        self, check: Callable[[pa.RecordBatch], object], fails: type[Exception] | tuple[type[Exception], ...], bad: Bad
    ) -> None:
        self._check, self._fails, self._bad = check, fails, bad

    def good(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that pass, in order."""
        first = 0
        for batch in batches:
            try:
                self._check(batch)
            except self._fails:
                yield from sift(batch, self._checked, self._fails, behind(self._bad, first))
            else:
                yield batch
            first += batch.num_rows

    def _checked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self._check(rows)
        return rows
