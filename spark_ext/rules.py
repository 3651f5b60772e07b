"""`expect`: rules on the rows that a query writes, judged by Spark in one pass, and carried out by the query's sink.

Only a sink knows which attempt at an epoch counts, so only there rows are put aside, and counted, exactly once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final, get_args
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from spark_ext.bad_rows.rules import COLUMN, OnFail, Rule, to_metadata
from spark_ext.errors import DataError, refused
from spark_ext.options import UID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEPT: Final = "nothing was started"
_SUBQUERY: Final = re.compile(r"\(\s*(?:select|with)\s", re.IGNORECASE)
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)

_known: WeakKeyDictionary[DataFrame, tuple[DataFrame, tuple[Rule, ...]]] = WeakKeyDictionary()
"""By a frame that `expect` has returned: the frame below its rules, and the rules."""


def expect(df: DataFrame, name: str, predicate: str, *, on_fail: OnFail, max_share: float = 1.0) -> DataFrame:
    """Add a rule to the rows that a query writes; call it again on the result for further rules.

    A row passes a rule if the predicate is true, and fails it if that is false or null, as with a CHECK constraint of
    Delta: `amount > 0 or amount is null` lets nulls pass. Each row is judged by all rules. One that fails

    - a rule with `fail` stops the query before anything of its epoch is visible;
    - a rule with `quarantine` goes to the table of bad rows, with the names of all rules that it fails; the sink needs
      `on_bad_row=quarantine`;
    - a rule with `drop`, and none with `quarantine`, is left out;
    - only rules with `count` is written.

    Failures are counted by rule, in the run's result, `spark-ext status`, the ledger and a metric. Good rows, rows in
    the table and dropped rows are together the rows that the query gives to its sink, exactly once.

    Rules come last, just before `writeStream`, and need a job with a sink of this library: until the sink takes it off
    the frame has the column `__spark_ext_rules`. In a batch read, rows that a job would put aside or drop are left out,
    `fail` fails the action, and nothing is counted.

    Args:
        df: batch or streaming.
        name: of the rule, unique in the frame: letters, digits and `. _ ~ -`, at most 128.
        predicate: a condition in Spark's SQL over the columns of `df`. It may call functions, also registered ones of
            your own, that return the same for the same row; no aggregates, windows or subqueries.
        on_fail: what becomes of a row that fails.
        max_share: the share of failing rows, among all rows of a run so far, above which the query stops before the
            epoch is visible. Not for batch reads, nor for `fail`.

    Raises:
        ConfigurationError: a name is bad or was used before; the predicate is not a condition that can be judged row by
            row, or names an unknown column; other operations follow earlier rules. `Job.add` refuses rules that others
            follow, and those that its sink cannot carry out.
    """
    plain, before = _known.get(df, (df, ()))
    who = f"rule '{name}'"
    if UID.fullmatch(name) is None:
        raise refused(
            f"'{name}' cannot be a rule's name", who, "use letters, digits and . _ ~ -, at most 128 of them", _KEPT
        )
    if on_fail not in get_args(OnFail):
        raise refused(f"on_fail is {on_fail!r}", who, f"use one of: {', '.join(get_args(OnFail))}", _KEPT)
    if not 0 <= max_share <= 1 or (on_fail == "fail" and max_share != 1):
        do = "use a number from 0 to 1" + ("; on_fail='count' stops above a share" if on_fail == "fail" else "")
        raise refused(f"max_share is {max_share} with on_fail='{on_fail}'", who, do, _KEPT)
    if any(rule.name == name for rule in before):
        raise refused("the frame has a rule of this name already", who, "give each rule a name of its own", _KEPT)
    if COLUMN in plain.columns:
        raise refused(
            "the frame has rules, and other operations follow them",
            who,
            "call expect for all rules one after the other, behind all other operations",
            _KEPT,
        )
    _check(plain, predicate, who)
    return _with_rules(plain, (*before, Rule(name, predicate, on_fail, max_share)))


def below_rules(df: DataFrame, change: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """A frame that is changed below its rules, if it has any."""
    plain, rules = _known.get(df, (df, ()))
    return _with_rules(change(plain), rules) if rules else change(df)


def _check(df: DataFrame, predicate: str, who: str) -> None:
    """Refuse what is not a condition on one row."""
    do = "use a condition in Spark's SQL over the columns of the frame, without aggregates, windows and random values"
    if _SUBQUERY.search(_QUOTED.sub("''", predicate)) is not None:
        raise refused(f"the predicate has a subquery, which a replay may answer otherwise: {predicate}", who, do, _KEPT)
    try:
        # Spark has the same conditions for the filter of an aggregate function. For itself the text is parsed as one.
        df.agg(F.expr(f"count(*) FILTER (WHERE {predicate}\n)"), F.max(F.expr(predicate))).schema  # noqa: B018
    except AnalysisException as problem:
        said = " ".join(str(problem).split("\n\n")[0].split())
        raise refused(f"the predicate cannot be used: {predicate}: {said}", who, do, _KEPT) from None


def _with_rules(df: DataFrame, rules: tuple[Rule, ...]) -> DataFrame:
    made = _judged(df, rules) if df.isStreaming else _filtered(df, rules)
    _known[made] = df, rules
    return made


def _passes(rule: Rule) -> Column:
    return F.coalesce(F.expr(rule.predicate), F.lit(False))


def _all(rules: Sequence[Rule]) -> Column:
    return reduce(lambda one, other: one & other, map(_passes, rules), F.lit(True))


def _judged(df: DataFrame, rules: tuple[Rule, ...]) -> DataFrame:
    # Without functions of a lambda, such as array_compact: Spark generates no code for a plan with one.
    failed = (F.when(_passes(rule), F.lit(-1)).otherwise(F.lit(number)) for number, rule in enumerate(rules))
    numbers = F.when(~_all(rules), F.array_remove(F.array(*failed), -1))
    return df.select("*", numbers.alias(COLUMN, metadata=to_metadata(rules)))


def _filtered(df: DataFrame, rules: tuple[Rule, ...]) -> DataFrame:
    """A batch without the rows that a job would not write."""
    kept = _all([rule for rule in rules if rule.on_fail in ("quarantine", "drop")])
    # One expression: Spark would judge parts of a conjunction in an order of its own, and leave rows out before.
    for rule in rules:
        if rule.on_fail == "fail":
            error = DataError(
                f"a row fails {rule.said}",
                kept="nothing was written",
                do=f'look at the rows: df.where("not coalesce(({rule.predicate}), false)")',
            )
            kept = F.when(_passes(rule), kept).otherwise(F.raise_error(F.lit(str(error))).cast("boolean"))
    return df.where(kept)
