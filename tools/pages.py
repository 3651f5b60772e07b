"""Tables of the documentation that are generated from the code: `python -m tools.pages` brings them up to date."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from spark_ext import settings
from spark_ext.commands.control_send import SENDERS
from spark_ext.ledger.columns import Column, columns
from spark_ext.ledger.schema import ROWS, Row
from spark_ext.metrics.catalogue import CATALOGUE, LABELS, Label, Metric
from spark_ext.options import byte_count, milliseconds

ROOT: Final = Path(__file__).parents[1]


def metrics() -> str:
    """A table of the metrics, and one of their labels."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|", *map(_metric, CATALOGUE)]
    return "\n".join([*rows, "", "| label | values |", "|---|---|", *map(_label, LABELS.values())])


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{name}`" for name in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def _label(label: Label) -> str:
    values = ", ".join(f"`{value}`" for value in label.values if value)
    return f"| `{label.name}` | {label.help}{f': {values}' if values else ''} |"


CONFIRM: Final = (
    "Confirm it. Without this option the command reports what would be skipped or read again, and exits with code 2."
)


def control_commands() -> str:
    """The commands that send an event of one kind."""
    rows = ["| command | what it does | options |", "|---|---|---|"]
    for sender in SENDERS:
        own = {**sender.options(), **({"--yes": CONFIRM} if sender.kind.confirmed else {})}
        options = "<br>".join(f"`{flag}`: {text}" for flag, text in own.items())
        rows.append(f"| `{sender.usage}` | {sender.about} | {options} |")
    return "\n".join(rows)


LINKS: Final = {
    "target_epoch": "linked-queries.md#backpressure",
    "savepoint_roots": "control-reference.md#tokens-and-who-may-do-what",
    "retained_checkpoints": "savepoints.md#retained-checkpoints",
    "checkpoint_timeout": "linked-queries.md#checkpoints",
    "monitor_interval": "operations.md#execution-states",
    "stall_after": "slow-and-stuck.md#stalls",
    "slow_factor": "slow-and-stuck.md#slow-epochs",
    "on_damage": "savepoints.md#retained-checkpoints",
    "dumps": "slow-and-stuck.md#dumps",
    "failures": "failures.md#rules-and-decisions-of-your-own",
    "incidents": "notifications.md#types-listeners-and-alerts-of-your-own",
    "epoch_parts": "slow-and-stuck.md#where-the-time-of-an-epoch-goes",
    "metrics": "metrics.md",
    "metrics_port": "metrics.md#prometheus",
    "latency": "metrics.md#latency",
    "lag_interval": "slow-and-stuck.md#how-far-it-is-behind",
    "opentelemetry": "metrics.md#opentelemetry",
    "storage_options": "object-stores.md",
}
"""Where the documentation explains a setting."""

HEADER: Final = """\
# Default settings of every job; arguments of Job(...) override them. Durations: "500 ms", "90 s", "1 hour".
# Generated from spark_ext/settings.py by `python -m tools.pages`.
"""

UNITS: Final = {"h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}


def about_settings() -> dict[str, str]:
    """What each setting means: the text below its definition."""
    (found,) = [
        node
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == settings.JobSettings.__name__
    ]
    return dict(_texts(found))


def _texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for member, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(member, ast.AnnAssign) and isinstance(after, ast.Expr):
            yield ast.unparse(member.target), inspect.cleandoc(ast.literal_eval(after.value)).replace("\n", " ")


def default(name: str) -> Any:
    """The default of a setting, durations and sizes with a unit."""
    field = settings.JobSettings.model_fields[name]
    value = field.get_default(call_default_factory=True)
    validators = [getattr(one, "func", None) for one in field.metadata]
    if byte_count in validators:
        return f"{value >> 30}g"
    if milliseconds not in validators or not value:
        return int(value) if isinstance(value, float) else value
    unit, size = next((unit, size) for unit, size in UNITS.items() if value % size == 0)
    return f"{value // size} {unit}"


def settings_table() -> str:
    """The settings, with defaults."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, text in about_settings().items():
        shown = f"[`{name}`]({LINKS[name]})" if name in LINKS else f"`{name}`"
        value = default(name)
        rows.append(f"| {shown} | {'none' if value in (None, (), {}) else str(value).lower()} | {text} |")
    return "\n".join(rows)


def shipped_settings() -> str:
    """The file `conf/job.yaml`."""
    parts = [HEADER]
    for name, text in about_settings().items():
        if name != "storage_options":
            value = default(name)
            line = yaml.safe_dump({name: list(value) if isinstance(value, tuple) else value})
            comment = "\n".join(
                textwrap.wrap(
                    re.sub(r"\bNone\b", "null", text.replace("`", "")), 118, initial_indent="# ", subsequent_indent="# "
                )
            )
            parts.append(f"{comment}\n{line}")
    return "\n".join(parts)


TYPES: Final = {"int64": "bigint", "bool": "boolean", "timestamp[us, tz=UTC]": "timestamp"}
"""Spark's names of Arrow types, where they differ."""


def tables() -> str:
    """The tables of the ledger, a line for each column."""
    return "\n\n".join(map(_table, ROWS))


def _table(row: type[Row]) -> str:
    meaning = _comments(row)
    head = f"### {row.table}\n\n{inspect.getdoc(row)}\n\n| column | type | meaning |\n|---|---|---|\n"
    return head + "\n".join(f"| `{one.name}` | {_type(one)} | {meaning[one.name]} |" for one in columns(row))


def _type(column: Column) -> str:
    name = "JSON text" if column.json else TYPES.get(str(column.arrow), str(column.arrow))
    return f"{name}, null" if column.nullable else name


def _comments(row: type[Row]) -> dict[str, str]:
    """The comment of each field: behind it, or on the lines below it."""
    found: dict[str, str] = {}
    name = ""
    for line in inspect.getsource(row).splitlines():
        if field := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
            name, found[field[1]] = field[1], field[2] or ""
        elif name and (more := re.match(r"    # (.*)", line)):
            found[name] = f"{found[name]} {more[1]}".strip()
    return found


PROGRAM: Final = re.compile(r"<!-- (examples/\S+): begin \(generated\) -->")
LANGUAGES: Final = {".py": "python", ".yaml": "yaml", ".cron": "text", ".service": "ini", ".timer": "ini"}


def program(path: str) -> str:
    """A file of `examples` as a block of code; of a program, what defines its job."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.startswith("examples/gallery/"):
        text = job_of(text)
    return f"```{LANGUAGES[Path(path).suffix]}\n{text.strip()}\n```"


def job_of(text: str) -> str:
    """A program without its docstring, what follows its function `job`, and the imports that are then without use."""
    nodes = ast.parse(text).body
    (end,) = [at for at, node in enumerate(nodes) if isinstance(node, ast.FunctionDef) and node.name == "job"]
    kept = nodes[1 : end + 1]
    used = {"annotations"} | {node.id for part in kept for node in ast.walk(part) if isinstance(node, ast.Name)}
    without = {
        line
        for node in kept
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and used.isdisjoint((one.asname or one.name).partition(".")[0] for one in node.names)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(text.splitlines()[: kept[-1].end_lineno], start=1)
    shown = "\n".join(line for at, line in lines if at >= kept[0].lineno and at not in without)
    return re.sub(r"\n{3,}(?=import|from)", "\n\n", shown)


PARTS: Final[Mapping[str, tuple[str, Callable[[], str]]]] = {
    "metrics": ("docs/metrics.md", metrics),
    "commands": ("docs/cli.md", control_commands),
    "settings": ("docs/job.md", settings_table),
    "tables": ("docs/ledger.md", tables),
}
"""The generated part of pages, by name."""


def renewed(text: str, name: str, made: str) -> str:
    """A page with a generated part up to date."""
    begin, end = f"<!-- {name}: begin (generated) -->", f"<!-- {name}: end -->"
    head, rest = text.split(begin)
    return f"{head}{begin}\n\n{made}\n\n{end}{rest.split(end)[1]}"


def with_programs(page: Path) -> str:
    """A page with the programs that it shows up to date."""
    text = page.read_text(encoding="utf-8")
    for path in PROGRAM.findall(text):
        text = renewed(text, path, program(path))
    return text


def files() -> dict[str, str]:
    """The files with generated parts, as they should be."""
    found = {"conf/job.yaml": shipped_settings()}
    for name, (path, made) in PARTS.items():
        found[path] = renewed((ROOT / path).read_text(encoding="utf-8"), name, made())
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md")):
        found[page.relative_to(ROOT).as_posix()] = with_programs(page)
    return found


if __name__ == "__main__":
    for path, text in files().items():
        (ROOT / path).write_text(text, encoding="utf-8")
