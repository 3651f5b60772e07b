"""Files of YAML with a fixed form: read into a pydantic model, and refused with the line that is wrong. Pure."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from spark_ext.errors import ConfigurationError, refused

M = TypeVar("M", bound=BaseModel)

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast


def read_model(model: type[M], text: str, name: str, who: str) -> tuple[M, Any]:
    """The text of a file as a model, and the document's root node, for `line_of`.

    `name` is the file's and `who` what it contains, for the message of a refusal, which names the line.
    """
    try:
        node, given = _parsed(text)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark
        raise wrong_line(name, mark.line + 1 if mark is not None else 1, str(problem.problem), who) from None
    except yaml.YAMLError as problem:
        raise wrong_line(name, 1, str(problem), who) from None
    try:
        return model.model_validate(given), node
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise wrong_line(name, line_of(node, first["loc"]), what, who) from None


def wrong_line(name: str, line: int, what: str, who: str) -> ConfigurationError:
    """The refusal of a file; lines are counted from 1."""
    return refused(f"{name}, line {line}: {what}", who, f"correct line {line} of {name}", "nothing was started")


def line_of(node: Any, loc: tuple[Any, ...]) -> int:
    """The line, from 1, of a place in a document, as pydantic names places, or of the nearest that contains it."""
    line: int = node.start_mark.line if node is not None else 0
    for part in loc:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
        elif isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line, pair[1]
        else:
            break
    return line + 1


def _parsed(text: str) -> tuple[Any, Any]:
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        return node, loader.construct_document(node) if node is not None else {}
    finally:
        loader.dispose()
