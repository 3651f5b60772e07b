"""Plans of Spark, read through py4j: their sources, watermarks, and what their state depends on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from spark_ext.masking import logger
from spark_ext.model.end_of_input import FORMAT as END_OF_INPUT
from spark_ext.spark.backend.contract import OpenGroups, PlanSource, Watermark, reads_in
from spark_ext.spark.backend.missing import missing_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logger("spark_ext.job")


def sources(df: DataFrame) -> tuple[PlanSource, ...]:
    """See `Backend.sources`."""
    return tuple(_source(leaf) for leaf in _items(_analyzed(df).collectLeaves()) if leaf.isStreaming())


def watermarks(df: DataFrame) -> tuple[Watermark, ...]:
    """See `Backend.watermarks`."""
    found: list[Watermark] = []
    left = [_analyzed(df)]
    while left:
        node = left.pop()
        if node.nodeName() == "EventTimeWatermark":
            found.append(Watermark(str(node.eventTime().name()), tuple(_leaves_below(node))))
        left.extend(_children(node))
    return tuple(found)


def configuration_reads(df: DataFrame) -> tuple[tuple[str, str], ...]:
    """See `Backend.configuration_reads`."""
    nodes = [_analyzed(df)]
    for node in nodes:
        nodes.extend(_children(node))
    return reads_in(str(one.sql()) for node in nodes for one in _items(node.expressions()))


def makes(df: DataFrame, column: str) -> bool | None:
    """See `Backend.makes`."""
    left = [_analyzed(df)]
    if left[0].nodeName() == "Project":
        last = left[0].projectList().last()
        if _kind(last) == "Alias" and last.name() == column:
            return True
    while left:
        node = left.pop()
        if node.nodeName() == "Project" and node.schema().getFieldIndex(column).isDefined():
            return False
        left.extend(_children(node))
    return None


def _leaves_below(watermark: Any) -> Iterator[PlanSource]:
    left = _children(watermark)
    while left:
        node = left.pop()
        if node.nodeName() != "EventTimeWatermark":
            children = _children(node)
            if not children and node.isStreaming():
                yield _source(node)
            left.extend(children)


def _analyzed(df: DataFrame) -> Any:
    return df._jdf.queryExecution().analyzed()


# Logical operators that keep state when they are on a stream, and their names in Spark's API.
_STATEFUL: Final = {
    "Aggregate": "aggregate",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "GlobalLimit": "limit",
    "Join": "join",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPandas": "transformWithState",  # of 4.0
    "TransformWithStateInPySpark": "transformWithState",
}


def stateful_operators(df: DataFrame) -> tuple[str, ...] | None:
    """See `Backend.stateful_operators`."""
    try:
        return _stateful_operators(df)
    except Exception as problem:
        name = missing_name(problem)
        if name is None:
            raise
        log.warning("a change of what state depends on is not noticed: the installed Spark has no '%s' for it", name)
        return None


def _stateful_operators(df: DataFrame) -> tuple[str, ...]:
    nodes: list[Any] = []
    found: list[tuple[Any, Any]] = []
    left = [(_analyzed(df), None)]
    while left:
        node, above = left.pop()
        nodes.append(node)
        children = _children(node)
        name = node.nodeName()
        # A stream that is joined with a table keeps no state.
        if name in _STATEFUL and node.isStreaming() and all(one.isStreaming() for one in children if name == "Join"):
            found.append((node, above))
        left.extend((child, node) for child in children)
        if name == "LateralJoin":
            left.append((node.right().plan(), node))
    columns = _Columns(nodes[::-1] if found else [])
    return tuple(columns.described(node, above) for node, above in found)


def open_groups(df: DataFrame) -> OpenGroups | None:
    """See `Backend.open_groups`."""
    nodes = [_analyzed(df)]
    for node in nodes:
        nodes.extend(_children(node))
    emitting = [node for node in nodes if node.isStreaming() and _emits_at_the_end(node)]
    if not emitting:
        return None
    node, above = nodes[0], []
    while node.nodeName() in ("Project", "SubqueryAlias"):
        above.append(node)
        (node,) = _children(node)
    if node.nodeName() != "Aggregate":
        if node in emitting:
            return OpenGroups(
                f"no later row would replace what '{_STATEFUL[node.nodeName()]}' emits at the end of input"
            )
        return OpenGroups(f"'{node.nodeName()}' follows the aggregation, and may drop a row that was shown before")
    if len(emitting) > 1:
        name = _STATEFUL[next(one for one in emitting if one != node).nodeName()]
        return OpenGroups(f"beside its last aggregation it has '{name}', which emits rows at the end of input, too")
    if not any(one.nodeName() == "EventTimeWatermark" for one in nodes):
        return OpenGroups("its aggregation has no watermark: its groups never close")
    if any(_is_marked(group, _SESSION) for group in _items(node.groupingExpressions())):
        return OpenGroups("two session windows may become one, and the row of one of them would stay")
    return OpenGroups(keys=_group_columns(node, above[::-1]))


def _emits_at_the_end(node: Any) -> bool:
    """Whether rows may come out of a node's state when its watermark passes everything."""
    if node.nodeName() == "Join":
        kind, streams = str(node.joinType().sql()), [one.isStreaming() for one in _children(node)]
        return kind not in ("INNER", "CROSS", "LEFT SEMI") and all(streams)
    return node.nodeName() in _STATEFUL and not node.nodeName().startswith("Deduplicate")


def _group_columns(aggregate: Any, above: list[Any]) -> tuple[frozenset[str], ...]:
    """Of each grouping column, or the ends of its window, the names that projections give it."""
    groups = _items(aggregate.groupingExpressions())
    known: dict[int, tuple[int, bool]] = {}  # by a column's id, which group it is, and whether it is a whole window

    def found(expression: Any) -> tuple[int, bool] | None:
        if _is_column(expression):
            return known.get(expression.exprId().id())
        if _kind(expression) == "GetStructField" and expression.extractFieldName() in ("start", "end"):
            group, whole = found(expression.child()) or (-1, False)
            return (group, False) if whole else None
        return None

    for one in _items(aggregate.aggregateExpressions()):
        made = one.child() if _kind(one) == "Alias" else one
        for place, group in enumerate(groups):
            if made.semanticEquals(group):
                known[one.exprId().id()] = place, _is_marked(group, _WINDOW)
    for node in above:
        for one in _items(node.expressions()):
            group_of = found(one.child()) if _kind(one) == "Alias" else None
            if group_of is not None:
                known[one.exprId().id()] = group_of
    names: list[set[str]] = [set() for _ in groups]
    for one in _items((above[-1] if above else aggregate).output()):
        place, whole = known.get(one.exprId().id(), (-1, True))
        if not whole:
            names[place].add(str(one.name()))
    return tuple(map(frozenset, names))


def _is_marked(column: Any, mark: str) -> bool:
    return _is_column(column) and bool(column.metadata().contains(mark))


class _Columns:
    """The columns of a plan, by what they are computed from. Its nodes are given with the sources first."""

    def __init__(self, nodes: list[Any]) -> None:
        # By the id of a column the expressions that it is made of: one for each branch of a union or window.
        self._made: dict[int, list[Any]] = {}
        self._texts: dict[int, str] = {}
        self._places: dict[int, int] = {}  # by the id of a column its number among those that one expression makes
        defined = {node.id(): node.child().output() for node in nodes if node.nodeName() == "CTERelationDef"}
        for node in nodes:
            for one in _items(node.expressions()):
                if _kind(one) == "Alias":
                    self._made[one.exprId().id()] = [one.child()]
            if node.nodeName() == "Generate":
                self._several(node.generatorOutput(), node.generator())
            elif node.nodeName().startswith("MapIn"):
                self._several(node.output(), next(one for one in _items(node.expressions()) if not _is_column(one)))
            elif node.nodeName() == "CTERelationRef" and node.cteId() in defined:
                for one, other in zip(_items(node.output()), _items(defined[node.cteId()]), strict=True):
                    if one.exprId().id() != other.exprId().id():
                        self._made[one.exprId().id()] = [other]
            elif node.nodeName() == "Expand":
                self._branches(node, _items(node.projections()))
            elif node.nodeName() == "Union":
                self._branches(node, [one.output() for one in _children(node) if not _is_marker(one)])

    def _several(self, columns: Any, made_by: Any) -> None:
        for place, one in enumerate(_items(columns)):
            self._made[one.exprId().id()] = [made_by]
            if columns.size() > 1:
                self._places[one.exprId().id()] = place

    def _branches(self, node: Any, rows: list[Any]) -> None:
        for column, *given in zip(_items(node.output()), *map(_items, rows), strict=True):
            number = column.exprId().id()
            self._made[number] = [
                one
                for each in given
                for one in (self._made.get(each.exprId().id(), [each]) if _is_column(each) else [each])
            ]

    def described(self, node: Any, above: Any) -> str:
        """A stateful operator, and the one that reads it, if any does."""
        kind, timing = node.nodeName(), ""
        name = _STATEFUL[kind]
        if kind == "Join":
            given = node.condition()
            if given.isEmpty() and above is not None and above.nodeName() == "Filter":
                return f"{node.joinType().sql().lower()} {name} where {self._text(above.condition())}"
            on = "" if given.isEmpty() else f" on {self._text(given.get())}"
            return f"{node.joinType().sql().lower()} {name}{on}"
        if kind == "GlobalLimit":
            return name
        if kind == "Aggregate":
            found = dict.fromkeys(map(self._aggregate, _aggregates(_items(node.aggregateExpressions()))))
            name, keys = f"{name} {', '.join(found)}".strip(), node.groupingExpressions()
        elif kind.startswith("Deduplicate"):
            keys = node.keys()
        elif kind == "Distinct":
            keys = node.child().output()
        elif kind.startswith("TransformWithStateInP"):
            timing, keys = node.timeMode().toString(), node.leftAttributes()
            name = f"{name} in {timing} mode"
        else:
            timing, keys = node.timeout().toString(), node.groupingAttributes()
            name = f"{name} with {timing}"
        if kind == "DeduplicateWithinWatermark" or timing.startswith("EventTime"):
            # How long it keeps what depends on this column.
            times = (one for one in _items(node.child().output()) if one.metadata().contains(_DELAY))
            name = f"{name} of {', '.join(self._text(one) for one in times)}"
        by = ", ".join(self._typed(one) for one in _items(keys))
        state = f" with {node.stateType().simpleString()}" if kind == "FlatMapGroupsInPandasWithState" else ""
        return f"{name} by {by}{state}" if by else f"{name}{state}"

    def _aggregate(self, expression: Any) -> str:
        function = expression.aggregateFunction()
        name = _NOT_IN_SQL.get(_kind(function))
        return self._typed(expression) + (f" with {name} {_text_of(getattr(function, name)())}" if name else "")

    def _typed(self, expression: Any) -> str:
        text = self._text(expression)
        return text if text.startswith("window(") else f"{text} {expression.dataType().simpleString()}"

    def _text(self, expression: Any) -> str:
        sql = str(expression.sql())
        if sql.startswith("named_struct('start', ") and f"{_CONVERSION.lower()}(" in sql:
            ends = (self._text(next(_converted(one))) for one in _children(expression)[1::2])
            times = (int(time) for time in re.findall(r"(?<![\w.])(-?\d+)L\b", sql))
            lengths = (f"{time} us" if time % 1_000_000 else f"{time // 1_000_000} s" for time in times)
            return f"window({', '.join(dict.fromkeys((*ends, *lengths)))})"
        leaves = (
            (one, one.e() if _kind(one) == "OuterReference" else one) for one in _items(expression.collectLeaves())
        )
        columns = [(one, column) for one, column in leaves if _is_column(column)]
        return inlined(sql, [(str(one.sql()), str(one.name()), self._column(column)) for one, column in columns])

    def _column(self, column: Any) -> str:
        number = column.exprId().id()
        if number not in self._texts:
            self._texts[number] = str(column.name())  # for what is made of itself
            made = dict.fromkeys(self._text(one) for one in self._made.get(number, ()))
            self._texts[number] = " or ".join(made) or str(column.name())
            if number in self._places:
                self._texts[number] += f"[{self._places[number]}]"
        return self._texts[number]


def inlined(sql: str, columns: list[tuple[str, str, str]]) -> str:
    """SQL of Spark's with its columns replaced; without seeds, and short: a long text ends with its checksum."""
    done = ""
    for *names, text in columns:
        found = re.search("|".join(rf"(?<![\w.`']){re.escape(name)}(?![\w.`'(])" for name in names), sql)
        if found is None:
            sql += f" of {text}"
            continue
        done, sql = done + sql[: found.start()] + text, sql[found.end() :]
    whole = re.sub(r"\b(randn?|uuid)\(-?\d+L?\)", r"\1()", done + sql)
    if len(whole) <= _LONGEST:
        return whole
    return f"{whole[:_LONGEST]}... {hashlib.sha256(whole.encode()).hexdigest()[:12]}"


_CONVERSION: Final = "PreciseTimestampConversion"  # what Spark makes a window of, around the time column
_LONGEST: Final = 200
_WINDOW: Final = "spark.timeWindow"  # in the metadata of the column of a window
_SESSION: Final = "spark.sessionWindow"  # likewise
_DELAY: Final = "spark.watermarkDelayMs"  # in the metadata of the column that has a watermark

# What Spark leaves out of the SQL of aggregate functions, by their classes.
_NOT_IN_SQL: Final = {
    "First": "ignoreNulls",
    "Last": "ignoreNulls",
    "AnyValue": "ignoreNulls",
    "HyperLogLogPlusPlus": "relativeSD",
    "PivotFirst": "pivotColumnValues",
}


def _text_of(value: Any) -> str:
    return str(value) if isinstance(value, (bool, float)) else str(value.mkString(", "))


def _is_marker(node: Any) -> bool:
    """Whether a branch of a union is the marker of a watermark, which brings no rows of the user's."""
    leaves = _items(node.collectLeaves())
    return all(one.isStreaming() and _source(one).format == END_OF_INPUT for one in leaves)


def _aggregates(expressions: list[Any]) -> Iterator[Any]:
    for one in expressions:
        if _kind(one) == "AggregateExpression":
            yield one
        else:
            yield from _aggregates(_children(one))


def _converted(expression: Any) -> Iterator[Any]:
    """The time columns that a window is made of, the innermost first."""
    for child in _children(expression):
        yield from _converted(child)
    if _kind(expression) == _CONVERSION:
        yield expression.child()


def _is_column(expression: Any) -> bool:
    return _kind(expression) == "AttributeReference"


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _items(found: Any) -> list[Any]:
    return [found.apply(position) for position in range(found.size())]


def _children(node: Any) -> list[Any]:
    return _items(node.children())


def _source(leaf: Any) -> PlanSource:
    kind = str(leaf.getClass().getSimpleName())
    if kind == "StreamingRelationV2":
        options = {str(entry.getKey()).lower(): str(entry.getValue()) for entry in leaf.extraOptions().entrySet()}
        name = str(leaf.sourceName())
        uid = options.get("uid")
        return PlanSource(name, options, uid, f"source '{name}'" + (f" with uid '{uid}'" if uid else ""))
    if kind == "StreamingRelation":
        name = str(leaf.sourceName())
        return PlanSource(name, {}, None, f"Spark's own source '{name}'")
    return PlanSource(kind, {}, None, f"a streaming relation of class {kind}")
