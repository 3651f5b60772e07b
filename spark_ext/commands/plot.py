"""`spark-ext plot`: a job as plots, in a file or in the terminal."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Final

import typer

from spark_ext.commands.output import State, Storage, print_text, storage_options
from spark_ext.errors import refused
from spark_ext.views.plot.data import PlotKind

FORMATS: Final = (".png", ".svg", ".pdf")
"""What a file may end with."""

WIDE: Final = 110
"""Characters in a line where the output is not a terminal."""


def plot(
    state: State,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="A file: .png, .svg or .pdf. Default: the terminal."),
    ] = None,
    kind: Annotated[
        list[PlotKind] | None, typer.Option(help="What is plotted; repeatable. Default: all that is known.")
    ] = None,
    storage: Storage = None,
) -> None:
    """Plot the epochs, the lag and the channels of a job, in the terminal or into a file."""
    if out is not None and out.suffix.lower() not in FORMATS:
        raise refused(
            f"'{out}' has no ending that says which kind of image is wanted",
            "plot, option --out",
            f"let it end with one of: {', '.join(FORMATS)}",
            kept="nothing was written",
        )
    from spark_ext.views.plot.job import plots_of
    from spark_ext.views.status import open_ledger

    shown = plots_of(open_ledger(state, storage_options(storage)), kind or (), datetime.now(timezone.utc))
    if out is None:
        from spark_ext.views.plot.terminal import view
        from spark_ext.views.terminal import Terminal

        console = Terminal()
        if not console.is_terminal:
            console.width = max(console.width, WIDE)
        console.print(view(shown, console.width), soft_wrap=True)
        return
    from spark_ext.views.plot.job import draw

    made = draw(shown, "plot")
    try:
        made.savefig(out, format=out.suffix.lower().lstrip("."), dpi=144)
    except OSError as problem:
        raise refused(
            f"{out} cannot be written: {problem.strerror}",
            "plot, option --out",
            "name a file in a folder that exists",
            kept="nothing was changed",
        ) from None
    print_text(f"written to {out}: {out.stat().st_size:,} bytes")
