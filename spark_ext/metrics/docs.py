"""The reference of the metrics, from the catalogue: `python -m spark_ext.metrics.docs docs/metrics.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_ext.metrics.catalogue import CATALOGUE, LABELS, Label, Metric

BEGIN = "<!-- metrics: begin (generated) -->"
END = "<!-- metrics: end -->"


def metrics_markdown() -> str:
    """A table of the metrics, and one of their labels."""
    metrics = ["| metric | type | labels | meaning |", "|---|---|---|---|", *map(_metric, CATALOGUE)]
    labels = ["| label | values |", "|---|---|", *map(_label, LABELS.values())]
    return "\n".join([*metrics, "", *labels])


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{name}`" for name in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def _label(label: Label) -> str:
    values = ", ".join(f"`{value}`" for value in label.values if value)
    return f"| `{label.name}` | {label.help}{f': {values}' if values else ''} |"


def renewed(page: str) -> str:
    """The page with its generated part up to date."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{metrics_markdown()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(renewed(target.read_text()))
