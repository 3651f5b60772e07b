"""Each benchmark once, small: that it yields its figures. What they are is measured by `make bench`."""

import math
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks._measure import NAMES, QUICK
from benchmarks._targets import TARGETS
from benchmarks.checkpoint_time import Size
from tests.benchmarks import small
from tests.support import browser


def named(benchmark: str, *further: str) -> tuple[str, ...]:
    return tuple(f"{benchmark}_{name}" for name in further)


SOURCES = ("kafka_range",)  # of `control_rates`: the others differ in what they read only

EACH: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "bad_rows": (
        ("bad_rows", *named("bad_rows", "inferred", "aside", "delta", "files", "kafka", "http", "postgres")),
        {"ROWS": 1000, "BAD_EVERY": 200, "SINK_ROWS": 200, "HTTP_ROWS": 100, "BATCH": 100, "PAIRS": 1},
    ),
    "bad_rows_epochs": (("bad_rows_epochs",), {"EPOCHS": 3, "WARM": 1, "ROWS": 5}),
    "batch_read": (("batch_read", "batch_read_epoch"), {"FILES": 2, "ROWS": 100}),
    "blocked": (("blocked_query",), {"SLEEP_S": 2, "WINDOW_S": 0.3, "WARM_S": 0.0}),
    "channels": (
        named("channels", "planning", "offset"),
        {"FINISHED": {"100 channels": 0, "100,000 channels": 50}, "RUNNING": 2, "EPOCHS": 2, "WARM": 2},
    ),
    "checkpoint_time": (
        named("checkpoint", "flat", "unaligned", "flink"),
        {"SIZES": (Size(40, 10, 0.1),), "TAKEN": 2},
    ),
    "control_acceptance": (
        named("control_acceptance", "one_p50", "one_p99", "eight_p50", "eight_p99"), {"REQUESTS": 8, "WARM": 1}
    ),
    "control_applied": (("control_applied",), {"EVENTS": 2, "WARM": 2}),
    "control_burst": (
        ("control_burst", *named("control_burst", "own", "answered")),
        {"REQUESTS": 100, "QUIET_S": 1.0, "WARM": 2, "SETTLING_S": 0.0},
    ),
    "control_change": (("control_change", *named("control_change", "session", "built")), {"SETTLED": 2}),
    "control_config": (
        named("control_config", "call", "epoch"), {"EPOCHS": 15, "WARM": 1, "KEYS": 2, "BATCHES": 3, "CALLS": 10}
    ),
    "control_epochs": (
        ("control_epochs", *named("control_epochs", "added", "looks")),
        {"WINDOW_S": 1.5, "SETTLING_S": 0.1, "WARM": 2},
    ),
    "control_look": (
        ("control_look",), {"SIDES": {"100,000 events": 100, "100 events": 10}, "BATCH": 50, "LOOKS": 2}
    ),
    "control_rates": (
        named("control_rates", *(f"{source}{change}" for source in SOURCES for change in ("", "_cut"))),
        {"SOURCES": SOURCES, "SECONDS": 0.3, "CUT_S": 0.3, "LIMITS": (20, 200, 2_000), "OF_CHANNEL": 200, "CUT": 100,
         "AT_MOST": 3_000},
    ),
    "delta_commit": (("delta_commit", "delta_commit_above_noop"), {"EPOCHS": 1, "WARM": 0, "ROWS": 10}),
    "delta_throughput": (("delta_throughput",), {"ROWS": 100, "EPOCHS": 1}),
    "early": (("early_emission",), {"EPOCHS": 1, "ROWS": 2_000, "KEYS": 100}),
    "epoch_files": (
        named("epoch_files", "stateless", "stateful"),
        {"STEPS": {"stateless": 3, "stateful": 3}, "WARM": 1, "PARTITIONS": 1},
    ),
    "files_throughput": (("files_throughput",), {"FILES": 2, "ROWS": 100}),
    "files_to_delta": (("files_to_delta",), {"FILES": 2, "ROWS": 100}),
    "finish": (("finish", "finish_watermark"), {"STEPS": 6, "EMPTY": (2, 4), "ROWS": 10}),
    "hop": (
        named("hop", "commit_p50", "commit_p99", "row_p50", "row_p99", "throughput"),
        {"SECONDS": 0, "WARM": 0, "RATE": 20, "ROWS": 400, "EPOCHS": 2},
    ),
    "idle_consumer": (("idle_consumer",), {"MANY": 2, "ROWS": 10, "WARM_S": 0.0, "WINDOW_S": 0.5}),
    "job_overhead": (
        named("job", "throughput", "epoch"),
        {"LARGE": {"rows": 10, "steps": 3}, "LARGE_WARM": 1, "SMALL": {"rows": 10, "steps": 3}, "SMALL_WARM": 1},
    ),
    "kafka": (named("kafka", "throughput", "bare", "read"), {"ROWS": 200, "EPOCHS": 1}),
    "keyed_rows": (("keyed_rows",), {"ROWS": 400, "EPOCHS": 2}),
    "metrics_epochs": (("metrics_epochs",), {"EPOCHS": 2, "QUERIES": 3}),
    "neighbours": (named("neighbours", "downtime", "gap"), {"WINDOW_S": 0.5, "UNDER_WAY": 0, "RATE": 10}),
    "operations_epochs": (named("operations", "epochs", "everything"), {"EPOCHS": 2}),
    "page": (named("page", "first_view", "scrolling"), {"QUERIES": 20, "EPOCHS": 100, "SCROLLED": 5}),
    "postgres": (
        named("postgres", "throughput", "throughput_tuned", "copy", "commit"),
        {"ROWS": 200, "SLOW_ROWS": 100, "EPOCHS": 1, "SMALL_EPOCHS": 2, "WARM": 1, "COPY_ROWS": 200},
    ),
    "push_gateway": (
        named("push", "single", "raw", "typed", "answer_p50", "answer_p99", "answer_store_p50", "answer_store_p99"),
        {"REQUESTS": {"single": 20, "raw": 2, "typed": 2}, "RATE": 20, "SECONDS": 1},
    ),
    "push_latency": (
        named("push_row", "kafka_p50", "kafka_p95", "plain_p50", "plain_p95"), {"RATE": 20, "SECONDS": 1, "WARM": 1}
    ),
    "push_overload": (
        named("push", "refused", "refused_kept", "refused_memory", "identities"),
        {"SECONDS": 2, "REQUESTS": 500, "MOST": 1 << 16, "IDENTITIES": 20_000, "BATCH": 10_000},
    ),
    "recovery": (named("recovery", "kill", "failure"), {"FILES": 200, "FAILURES": 1, "EPOCHS_BEFORE": 1}),
    "restore_cost": (named("restore", "time", "savepoint", "bytes"), {"ROWS": 1_000}),
    "rules": (("rules",), {"FILES": 1, "ROWS": 100}),
    "sessions": (("session_connect",), {"EPOCHS": 4, "WARM": 2, "MATRIX": Path("none")}),
    "short_lived": (named("short_lived", "start", "whole", "copy"), {"PREPARE": False, "MONTHS": 1}),
    "sustained": (
        named("sustained", *TARGETS), {"SECONDS": 1, "ROWS": 4, "INTERVAL": "500 ms", "WARM": 0}
    ),
    "target_epoch": (("target_epoch",), {"TARGET_S": 0.3, "SETTLING": 1, "MEASURED": 2}),
    "upsert": (("upsert",), {"ROWS": 20, "TABLE": 100, "EPOCHS": 1, "WARM": 0}),
}  # fmt: skip
"""By benchmark: its figures, and the sizes with which it takes seconds."""

DIFFERENCES = {
    "control_epochs_added", "early_emission", "finish_watermark", "idle_consumer", "neighbours_downtime",
    "target_epoch",
}  # fmt: skip
"""Figures that are differences, or divided ones: they may be zero or less. So may those of `control_rates`."""


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), small.prepare) as pool:
        yield pool
        pool.submit(small.close).result()


def test_each_benchmark_is_among_these() -> None:
    assert set(EACH) == set(NAMES)


def test_the_ten_figures_of_a_quick_run_are_among_these() -> None:
    assert all(set(quick.figures) <= set(EACH[name][0]) for name, quick in QUICK.items())
    assert sum(len(quick.figures) for quick in QUICK.values()) == 10


@pytest.mark.slow(6, "most run a small job for each of their sides, some start drivers of their own")
@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_yields_its_figures(process: ProcessPoolExecutor, name: str) -> None:
    if name == "page" and (reason := browser.missing()):
        pytest.skip(reason)
    figures = process.submit(small.measured, name, EACH[name][1]).result()
    assert {figure.name for figure in figures} == set(EACH[name][0])
    for figure in figures:
        assert math.isfinite(figure.ratio)
        assert figure.ratio > 0 or name == "control_rates" or figure.name in DIFFERENCES, figure
        assert all(math.isfinite(value) for sample in figure.samples.values() for value in sample.values)
        assert figure.to_json(name)["meets"] in (True, False)
