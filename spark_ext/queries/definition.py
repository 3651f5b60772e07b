"""A query's definition, from its specification: what the ledger remembers of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_ext.model.definitions import OperatorDefinition, QueryDefinition, Role
from spark_ext.queries import operators
from spark_ext.spark.backend.kinds import backend_of

if TYPE_CHECKING:
    from spark_ext.queries.spec import OperatorSpec, QuerySpec


def definition_of(spec: QuerySpec) -> QueryDefinition:
    """What a query is made of.

    Raises:
        ConfigurationError: an option of an operator is refused.
    """
    found = [_operator(source, Role.SOURCE) for source in spec.sources]
    found += [_operator(end, Role.END) for end in spec.ends]
    found += [_operator(spec.sink, Role.SINK)] if spec.sink is not None else []
    frame = backend_of(spec.writer).frame(spec.writer)
    columns = tuple((field.name, field.dataType.simpleString()) for field in frame.schema.fields)
    state = backend_of(frame).stateful_operators(frame)
    return QueryDefinition(tuple(found), spec.natives, spec.sink_format, columns, state)


def _operator(spec: OperatorSpec, role: Role) -> OperatorDefinition:
    return OperatorDefinition(
        spec.uid, role, spec.format, operators.identity(spec.format, spec.options), spec.public_options()
    )
