"""`spark-ext report`: a job as one HTML file, which needs no server."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from spark_ext.commands.output import State, Storage, print_text, storage_options
from spark_ext.errors import refused


def report(
    state: State,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the file is written.")] = Path(
        "job.html"
    ),
    storage: Storage = None,
) -> None:
    """Write what the web page shows of a job into one HTML file, which loads nothing and needs no server."""
    from spark_ext.server.report import report as make
    from spark_ext.views.page.facts import FactsReader
    from spark_ext.views.status import open_ledger

    text = make(FactsReader(open_ledger(state, storage_options(storage))).look(), datetime.now(timezone.utc))
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise refused(
            f"{output} cannot be written: {problem.strerror}",
            "report",
            "name a file in a folder that exists",
            kept="nothing was changed",
        ) from None
    print_text(f"written to {output}: {len(text.encode()):,} bytes")
