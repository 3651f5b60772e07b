"""The rules of this project's code that neither ruff nor mypy knows; `make lint` runs it.

    python -m tools.rules [ROOT]

Each rule is a function from the parsed files to findings; CONTRIBUTING.md says what each one is for.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.private_names import private_names

FOLDERS: Final = ("spark_ext", "sources", "sinks", "listeners")

WHOLE: Final = ("spark_ext/jobs/", "spark_ext/queries/")
"""Where objects are assembled once: nothing is assigned from outside, and no collaborator is optional."""

CHAIN: Final = 2
"""How many own classes a class may have above it; connectors' options 3."""

SMALL: Final = 80

SMALL_FILES: Final = 60
"""How many files may have less than `SMALL` lines."""

STORAGE: Final = "spark_ext/storage/"

OF_OS: Final = ("link", "replace")

OF_PATHS: Final = ("fsync", "fdatasync", "hardlink_to", "rename", "renames")

STUMBLES: Final = ("there is no", "there is none", "there are no", "there are none", "of which", "by whom", "so many")
PHRASES: Final = re.compile(
    rf"\b({'|'.join((*STUMBLES, 'as far as', 'anew', 'whoever', 'has come of'))})\b".replace(" ", r"\s+"), re.IGNORECASE
)

SUBJECT: Final = re.compile(r"[a-z0-9_.,/ -]+: [a-z`'\"<0-9].*")

SINCE: Final = "2026-11-28T22:00:00Z"
"""Subjects of commits are checked from then on."""

DATA: Final = frozenset(
    [
        *("str", "int", "float", "bool", "bytes", "Path", "datetime", "timedelta", "object", "None", "Any"),
        *("Callable", "type", "Sequence", "Mapping", "Iterable", "Collection", "Iterator", "Literal"),
        *("dict", "list", "tuple", "set", "frozenset", "StructType"),
    ]
)
"""Names in annotations that stand for data, and for functions."""


@dataclass(frozen=True)
class File:
    """A file of the product."""

    path: str
    tree: ast.Module
    lines: int

    def walk(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """The nodes of these kinds."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))


def read(root: Path) -> list[File]:
    """The files of the product below a checkout's root; a folder that is linked to another place counts once."""
    paths = {path.resolve() for folder in FOLDERS for path in (root / folder).rglob("*.py")}
    texts = {str(path.relative_to(root.resolve())): path.read_text("utf-8") for path in sorted(paths)}
    return [File(path, ast.parse(text), text.count("\n")) for path, text in texts.items()]


def chains(files: Iterable[File]) -> Iterator[str]:
    """Chains of own classes, but for errors and contract test classes."""
    bases: dict[str, tuple[list[str], str]] = {}
    for file in files:
        for node in file.walk(ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            names = [ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in node.bases]
            bases[node.name] = (names, f"{file.path}:{node.lineno}")
    for name, (_, where) in bases.items():
        chain = _chain(name, bases)
        allowed = CHAIN + (name.endswith("Options"))
        if len(chain) - 1 > allowed and not any(one.endswith("Error") for one in chain):
            yield f"{where}: {' < '.join(chain)}: more than {allowed} own classes above {name}"


def _chain(name: str, bases: Mapping[str, tuple[list[str], str]]) -> list[str]:
    above = [_chain(base, bases) for base in bases[name][0] if base in bases and base != name]
    return [name, *max(above, key=len, default=[])]


def assigned_from_outside(files: Iterable[File]) -> Iterator[str]:
    """Attributes of other objects that are assigned."""
    for file in _whole(files):
        for node in file.walk(ast.Attribute):
            assert isinstance(node, ast.Attribute)
            if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) not in ("self", "cls"):
                yield f"{file.path}:{node.lineno}: assigns {ast.unparse(node)}: give its owner a method"


def optional_collaborators(files: Iterable[File]) -> Iterator[str]:
    """Parameters of constructors that are an object of this project or None."""
    for file in _whole(files):
        for node in file.walk(ast.ClassDef):
            assert isinstance(node, ast.ClassDef)
            for name, annotation in _collaborators(node):
                text = ast.unparse(annotation).strip("'\"")
                names = {part.split(".")[-1] for part in re.findall(r"[A-Za-z_.]+", text)}
                if re.search(r"\| None$|^None \|", text) and not names <= DATA:
                    yield f"{file.path}:{node.lineno}: {node.name} takes {name}: {text}: require it"


def _collaborators(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    decorators = " ".join(ast.unparse(one) for one in node.decorator_list)
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            given = [*member.args.args, *member.args.kwonlyargs]
            yield from ((one.arg, one.annotation) for one in given if one.annotation)
        elif isinstance(member, ast.AnnAssign) and "dataclass" in decorators and "frozen=True" not in decorators:
            yield ast.unparse(member.target), member.annotation


def files_outside_storage(files: Iterable[File]) -> Iterator[str]:
    """Renames, links and syncs of files outside the room for files."""
    for file in files:
        for node in file.walk(ast.Call):
            assert isinstance(node, ast.Call)
            if isinstance(node.func, ast.Attribute) and not file.path.startswith(STORAGE):
                name, owner = node.func.attr, ast.unparse(node.func.value)
                # `replace` of a text or a time has other arguments than that of a path.
                of_path = name == "replace" and len(node.args) == 1 and not node.keywords
                if name in OF_PATHS or of_path or (owner == "os" and name in OF_OS):
                    yield f"{file.path}:{node.lineno}: {owner}.{name}: use {STORAGE}"


def phrases(files: Iterable[File]) -> Iterator[str]:
    """Phrases in strings and docstrings at which a native reader stumbles."""
    for file in files:
        for node in file.walk(ast.Constant):
            assert isinstance(node, ast.Constant)
            if isinstance(node.value, str) and (found := PHRASES.search(node.value)):
                line = node.lineno + node.value[: found.start()].count("\n")
                yield f"{file.path}:{line}: '{' '.join(found[0].split())}' in a text: say it plainly"


def small_files(files: Iterable[File]) -> Iterator[str]:
    """Files that should be in the file that uses them."""
    small = [file for file in files if file.lines < SMALL and not file.path.endswith("__init__.py")]
    if len(small) > SMALL_FILES:
        listed = ", ".join(file.path for file in sorted(small, key=lambda file: file.lines)[:5])
        yield f"{len(small)} files of less than {SMALL} lines, {SMALL_FILES} are allowed: {listed}, ..."


def subjects(lines: Iterable[str]) -> Iterator[str]:
    """Subjects of commits: `area: imperative`, 72 characters."""
    for line in lines:
        if len(line) > 72 or not SUBJECT.fullmatch(line):
            yield f"commit '{line}': write 'area: imperative', 72 characters at most"


def _whole(files: Iterable[File]) -> Iterator[File]:
    return (file for file in files if file.path.startswith(WHOLE))


RULES: Final[tuple[Callable[[Iterable[File]], Iterator[str]], ...]] = (
    chains,
    assigned_from_outside,
    optional_collaborators,
    files_outside_storage,
    phrases,
    small_files,
    private_names,
)


def main(root: Path) -> int:
    """Print the findings of all rules.

    Returns:
        1 if there is any.
    """
    files = read(root)
    log = ["git", "-C", str(root), "log", "--no-merges", "--format=%s", f"--since={SINCE}"]
    commits = subprocess.run(log, capture_output=True, text=True, check=False).stdout.splitlines()
    found = [line for rule in RULES for line in rule(files)] + list(subjects(commits))
    print("\n".join(found) if found else f"{len(RULES) + 1} rules hold in {len(files)} files")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
