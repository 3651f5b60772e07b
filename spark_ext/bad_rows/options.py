"""The options of a source or sink about its bad rows, and the limits that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, field_validator, model_validator

from spark_ext.options import Options
from spark_ext.storage import Location, check_for_delta


class BadRowOptions(Options):
    """Options of whatever can put bad rows aside."""

    on_bad_row: Literal["fail", "quarantine"] = "fail"
    """What is done about a row that does not parse or fit: the query fails, or the row goes to a table of its own."""
    bad_rows_path: str | None = None
    """With `quarantine`: path or URI of the Delta table; None: `bad_rows/table` in the job's state directory."""
    max_bad_share: float = Field(default=1.0, ge=0, le=1)
    """With `quarantine`: the share of bad rows among all rows of a run above which the job stops; 1: it never does."""
    max_bad_rows: int | None = Field(default=None, ge=0)
    """With `quarantine`: the number of bad rows of a run above which the job stops; None: it never does."""

    @field_validator("bad_rows_path")
    @classmethod
    def _absolute(cls, path: str | None) -> str | None:
        """As the user's process sees it: others have another working directory."""
        if path is None:
            return None
        location = Location.of(path, {})
        check_for_delta(location, "the option 'bad_rows_path'")
        return location.uri

    @model_validator(mode="after")
    def _bad_rows_together(self) -> BadRowOptions:
        if self.on_bad_row != "quarantine":
            for name in ("bad_rows_path", "max_bad_share", "max_bad_rows"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} needs on_bad_row=quarantine")
        return self


@dataclass(frozen=True)
class BadRowLimits:
    """The limits of one source, for one run of its job."""

    share: float = 1.0  # the share of bad rows among all rows that is tolerated; 1: any
    rows: int | None = None  # the number of bad rows that is tolerated; None: any

    def exceeded(self, bad: int, good: int | None) -> str | None:
        """What is exceeded, for a message; None: nothing known. The share is judged if the good rows are known."""
        if self.rows is not None and bad > self.rows:
            return f"{bad} rows are bad, which is more than max_bad_rows={self.rows}"
        if good is not None and bad > self.share * (bad + good):
            share = bad / (bad + good)
            return f"{bad} of {bad + good} rows are bad: {share:.2%}, which is more than max_bad_share={self.share:g}"
        return None
