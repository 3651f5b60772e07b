"""Which benchmarks there are, and how one is run: in full, or shorter with other sizes.

A benchmark is a module with a function `run`. Its sizes are constants of the module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks._figures import Figure

_MODULES: Final = pkgutil.iter_modules([str(Path(__file__).parent)])
NAMES: Final = tuple(sorted(one.name for one in _MODULES if not one.name.startswith("_") and not one.ispkg))
"""All modules of this folder, except for those that begin with an underscore, and folders."""


@dataclass(frozen=True)
class Quick:
    figures: tuple[str, ...]  # those of its figures that are shown
    rounds: int
    sizes: Mapping[str, Any] = field(default_factory=dict)


QUICK: Final = {
    "delta_throughput": Quick(("delta_throughput",), 3, {"ROWS": 1_000_000, "EPOCHS": 3}),
    "delta_commit": Quick(("delta_commit",), 3, {"EPOCHS": 6}),
    "upsert": Quick(("upsert",), 2, {"EPOCHS": 3, "TABLE": 200_000}),
    "job_overhead": Quick(("job_epoch",), 4, {"SMALL": {"rows": 500, "steps": 30}, "PARTS": ("epoch",)}),
    "files_throughput": Quick(("files_throughput",), 5, {"FILES": 8}),
    "finish": Quick(("finish",), 4, {"KINDS": ("plain",)}),
    "recovery": Quick(("recovery_kill", "recovery_failure"), 2, {"FILES": 600, "FAILURES": 3}),
    "hop": Quick(("hop_commit_p50",), 1, {"SECONDS": 12, "PARTS": ("latency",)}),
    "kafka": Quick(("kafka_throughput",), 3, {"ROWS": 300_000, "PARTS": ("throughput",)}),
}
"""What users ask for first, in a tenth of the time."""


def measure(name: str, rounds: int | None = None, sizes: Mapping[str, Any] | None = None) -> list[Figure]:
    """Run a benchmark in this process, with other sizes in place of constants of its module, which stay."""
    module = importlib.import_module(f"benchmarks.{name}")
    for constant, value in (sizes or {}).items():
        if not hasattr(module, constant):
            raise AttributeError(f"benchmark '{name}' has no size {constant}")
        setattr(module, constant, value)
    return list(module.run(rounds) if rounds else module.run())
