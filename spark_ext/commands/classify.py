"""`spark-ext classify`: explain a stack trace, without Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_ext.commands.output import Json, print_json, print_text
from spark_ext.errors import refused

if TYPE_CHECKING:
    from spark_ext.spark.backend.failures import Explanation


def classify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file with a stack trace; - for standard input.")],
    rules: Annotated[
        str | None, typer.Option(help="A file of rules that come before the shipped ones.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain a stack trace: the kind of failure, whose code failed, and how a job reacts to it."""
    from spark_ext.spark.backend.failures import classify as explain

    found = explain(_read(file), rules=rules)
    if as_json:
        value = {**found.verdict.to_json(), "decision": found.decision.value, **found.evidence.to_json()}
        print_json(value)
    else:
        print_text("\n".join(_lines(found)))


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise refused(
            f"{file} cannot be read: {problem.strerror}", "classify", "name a file", kept="nothing was changed"
        ) from None


def _lines(found: Explanation) -> list[str]:
    verdict = found.verdict
    further = {key: value for key, value in verdict.labels.items() if key not in ("type", "origin")}
    pairs = [
        ("type", verdict.labels["type"]),
        ("origin", verdict.origin.value),
        ("decision", found.decision.value),
        ("line", verdict.place),
        ("object", verdict.subject),
        *further.items(),
        ("rule", verdict.rule or "none matched"),
        ("error", verdict.summary),
    ]
    lines = [f"{name + ':':<10} {value}" for name, value in pairs if value]
    lines.append("because of:")
    lines += [f"  {raised.link.value:<10} {raised.kind}" for raised in found.evidence.chain]
    return lines
