"""JSON Schemas (2020-12) that come from outside: nothing is fetched for them, and none ends the process. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from spark_ext.model.offsets import Json


def check(schema: Json) -> None:
    """Refuse what is not a schema, or cannot be used without looking elsewhere."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        Draft202012Validator.check_schema(schema)
        resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
        for reference in _references(schema):
            try:
                resolver.lookup(reference)
            except (Unresolvable, ValueError):
                raise ValueError(f"{reference!r} does not refer to a part of the schema itself") from None
        _first(schema, None)
    except SchemaError as problem:
        raise ValueError(problem.message[:500]) from None
    except RecursionError:
        raise ValueError("it is nested too deeply, or refers to itself without end") from None


def problem_of(schema: Json, value: Json) -> str | None:
    """Why a value does not conform to a schema; None if it does."""
    from referencing.exceptions import Unresolvable

    try:
        return _first(schema, value)
    except RecursionError:
        return "the schema refers to itself without end, or the value is nested too deeply"
    except Unresolvable as problem:
        return f"the schema refers to what is not part of it: {problem}"[:500]


def _first(schema: Json, value: Json) -> str | None:
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # An empty registry fetches nothing.
    found = next(Draft202012Validator(schema, registry=Registry()).iter_errors(value), None)
    return None if found is None else found.message[:500]


def _references(schema: Json) -> Iterator[str]:
    """All references; also what looks like one in a constant."""
    if isinstance(schema, dict):
        for name, part in schema.items():
            if name in ("$ref", "$dynamicRef") and isinstance(part, str):
                yield part
            yield from _references(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _references(part)
