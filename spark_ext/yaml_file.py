"""Files of YAML with a fixed form: read into a pydantic model, and refused with the line that is wrong. Pure."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from spark_ext.errors import ConfigurationError

M = TypeVar("M", bound=BaseModel)

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C, where there is one, is ten times as fast."""


def read_model(model: type[M], text: str, name: str, who: str) -> tuple[M, Any]:
    """The content of a file as a model.

    Args:
        model: its form.
        text: its content.
        name: of the file, for messages.
        who: what the file contains, for messages.

    Returns:
        The model, and the document's root node, which `line_of` knows.

    Raises:
        ConfigurationError: it is not YAML, or a field is unknown or invalid; the message names the line.
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
    """The refusal of a file.

    Args:
        name: of the file.
        line: that is wrong, from 1.
        what: is wrong with it.
        who: what the file contains.
    """
    return ConfigurationError(
        f"{name}, line {line}: {what}", operator=who, kept="nothing was started", do=f"correct line {line} of {name}"
    )


def line_of(node: Any, loc: tuple[Any, ...]) -> int:
    """The line, from 1, of a place in a document, or of the nearest that contains it.

    Args:
        node: the document's root.
        loc: names and indexes, from the root on; as pydantic names places.
    """
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
    """The nodes of a document, which know their lines, and its values."""
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        return node, loader.construct_document(node) if node is not None else {}
    finally:
        loader.dispose()
