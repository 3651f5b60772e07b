"""Every advice of the product, the `do` of its errors, found by parsing its sources."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("spark_ext", "sources", "sinks", "listeners")


@cache
def advice() -> dict[str, str]:
    """Each text, with `{expression}` for what is filled in, and one place where it is given."""
    modules = {
        file: ast.parse(file.read_text())
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in file.parents)
    }
    takes: dict[str, int] = {}
    for tree in modules.values():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
            if "do" in names:
                takes[function.name] = names.index("do")
    constants: dict[str, list[str]] = {}
    for tree in modules.values():
        for line in tree.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
                constants.setdefault(line.target.id, _texts(line.value, {}))
    found: dict[str, str] = {}
    for file, tree in modules.items():
        for one in (node for node in ast.walk(tree) if isinstance(node, (ast.Call, ast.Assign))):
            for node in _given(one, takes):
                for text in _texts(node, constants):
                    found.setdefault(text, f"{file.relative_to(ROOT)}:{one.lineno}")
    # What is nothing but an expression passes on what is given elsewhere.
    return {text: place for text, place in found.items() if not re.fullmatch(r"(\{[^{}]*\}|: )*", text)}


def _given(call: ast.Call | ast.Assign, takes: dict[str, int]) -> Iterator[ast.expr]:
    if isinstance(call, ast.Assign):
        yield from (call.value for name in call.targets if isinstance(name, ast.Name) and name.id == "do")
        return
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "do")
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    logs = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "log"
    if name in takes and len(call.args) > takes[name] and not logs:
        yield call.args[takes[name]]


def _texts(node: ast.expr, constants: Mapping[str, list[str]]) -> list[str]:
    if isinstance(node, ast.FormattedValue):
        node = node.value
        if not isinstance(node, ast.Name) or node.id not in constants:
            return ["{" + ast.unparse(node) + "}"]
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, constants), *_texts(node.orelse, constants)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(text for value in node.values for text in _texts(value, constants)[:1])]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [left + right for left in _texts(node.left, constants) for right in _texts(node.right, constants)]
    return ["{" + ast.unparse(node) + "}"]
