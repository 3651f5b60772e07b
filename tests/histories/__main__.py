"""`python -m tests.histories`: random histories of a small job with real drivers; exits with 1 on a wrong one."""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.histories.definition import history
from tests.histories.play import Garage, World
from tests.support import cheap_jvm


def main(
    count: Annotated[int, typer.Option(min=1, help="histories")] = 200,
    seed: Annotated[int, typer.Option(help="seed of the first one; the others follow")] = 1,
    keep: Annotated[Path | None, typer.Option(help="work in this directory, and keep wrong histories")] = None,
) -> None:
    """Play random histories: the output is exact, or the start was refused because something had changed."""
    console = Console(soft_wrap=True, highlight=False)
    root = (keep or Path(tempfile.mkdtemp(prefix="histories-"))).resolve()
    root.mkdir(parents=True, exist_ok=True)
    cheap_jvm.prepare()
    garage = Garage(root)
    exact = refused = wrong = starts = 0
    began = time.monotonic()
    try:
        for number in range(seed, seed + count):
            world = World(root / f"h{number}", history(number)[0], garage)
            try:
                for step in history(number)[1]:
                    world.play(step)
            except TimeoutError as problem:
                world.problems.append(f"HUNG: {problem}")
            starts += sum(line.startswith("->") for line in world.log)
            refused += world.refused > 0
            exact += not world.refused and not world.problems
            wrong += bool(world.problems)
            console.print(f"{number} {world.definition.format}: {'; '.join(world.log)}")
            for wrong_one in world.problems:
                console.print(f"   WRONG: {wrong_one}", style="red")
            if not world.problems:
                shutil.rmtree(world.root)
    finally:
        garage.close()
        if keep is None and not wrong:
            shutil.rmtree(root)
    took = time.monotonic() - began
    console.print(
        f"{count} histories, {starts} starts in {took:.0f} s: {exact} exact, {refused} with a start that was refused "
        f"and exact after it, {wrong} others" + (f" (kept in {root})" if wrong else "")
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
