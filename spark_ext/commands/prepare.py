"""Before a job: `spark-ext init` copies a program of the gallery, `spark-ext prepare` lets sessions start fast."""

from __future__ import annotations

import ast
import json
import re
import sys
from enum import Enum
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import typer

from spark_ext.commands.output import print_rows, print_text
from spark_ext.errors import refused
from spark_ext.options import unknown

_WHO: Final = "spark-ext init"
_INSTALLED: Final = ("share", "spark-ext", "gallery", "first.py")  # below the environment's folder

_TEMPLATES: Final = {
    "first": "first.py",
    "csv-hourly": "incremental_files.py",
    "postgres-scd1": "postgres_to_delta.py",
    "kafka-to-postgres": "kafka_to_postgres.py",
    "webhook": "github_webhooks.py",
    "own-source": "own_source.py",
    "notebook": "../first_job.ipynb",
}
"""Programs under the names of what most people begin with, in this order; the others are called like their files."""

ProgramArgument = Annotated[str | None, typer.Argument(metavar="PROGRAM", help="Its name. Default: list all programs.")]
FolderOption = Annotated[Path, typer.Option("--folder", metavar="PATH", help="Where to copy it.")]


def init(program: ProgramArgument = None, folder: FolderOption = Path()) -> None:
    """Copy a program that runs, as the beginning of your own; without PROGRAM, list the programs.

    An existing file is not overwritten.
    """
    gallery = _gallery()
    programs = {name: gallery / file for name, file in _TEMPLATES.items()}
    named = set(programs.values())
    others = {path.stem.replace("_", "-"): path for path in sorted(gallery.glob("*.py"))}
    if program is None:
        listed = programs | {name: path for name, path in others.items() if path not in named}
        rows = [{"program": name, "what it does": _about(path)} for name, path in listed.items()]
        print_rows(rows, list(rows[0]), as_json=False)
        print_text("spark-ext init PROGRAM copies one into this folder")
        return
    programs = others | programs
    if program not in programs:
        raise refused(*unknown("program", program, programs, {}, _WHO))
    made = programs[program]
    tests = gallery / "tests" / f"test_{made.name}"
    copies = {folder / f"{program.replace('-', '_')}{made.suffix}": made}
    copies |= {folder / tests.name: tests} if tests.exists() else {}
    for copy in copies:
        if copy.exists():
            raise refused(f"{copy} exists", _WHO, "move it away, or choose another folder with --folder")
    folder.mkdir(parents=True, exist_ok=True)
    copy = next(iter(copies))
    for file, original in copies.items():
        text = original.read_text(encoding="utf-8").replace(f"examples/gallery/{made.name}", copy.name)
        file.write_text(text, encoding="utf-8")
    run = "python" if made.suffix == ".py" else "jupyter lab"
    print_text(f"{copy}: {_about(made)} Its first lines say what it needs.\nrun it: {run} {copy}")
    if found := re.search(r'^OUT = Path\("([^"]+)"\)$.+^    shutil\.rmtree\(OUT', copy.read_text("utf-8"), re.M | re.S):
        print_text(
            f"  with rows of its own: it deletes {found[1]} first. With yours: put your path into its function `job`, "
            f"and run spark-ext run {copy}"
        )
    for file in copies.keys() - {copy}:
        print_text(f"test it: pytest {file}")


def _gallery() -> Path:
    """The folder of the programs: that of the wheel, or that of the checkout that is in use."""
    for one in metadata.files("spark-ext") or ():
        if one.parts[-4:] == _INSTALLED:
            return Path(str(one.locate())).resolve().parent
    return Path(__file__).resolve().parents[2] / "examples" / "gallery"


def _about(program: Path) -> str:
    text = program.read_text(encoding="utf-8")
    if program.suffix == ".ipynb":
        return str(json.loads(text)["cells"][0]["source"][0]).strip("# \n") + ", as a notebook."
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


class Store(str, Enum):
    """Object stores whose Hadoop file system can be fetched."""

    S3 = "s3"


StorageOption = Annotated[Store | None, typer.Option(help="Also fetch Hadoop's file system for this store.")]


def prepare(
    storage: StorageOption = None,
    again: Annotated[bool, typer.Option("--again", help="Rebuild the class archive even if it exists.")] = False,
) -> None:
    """Fetch Delta's jars and archive the classes of Spark's JVM, so that sessions on this machine start faster.

    Writes into the user's cache ($XDG_CACHE_HOME or ~/.cache) and needs up to a minute. Without it the first session
    fetches the jars, and each one loads its classes from them.
    """
    from spark_ext.spark.backend.process import installed_home
    from spark_ext.spark.session import class_archive, environment
    from spark_ext.spark.session.jars import delta_jars

    environment.require_pyspark()
    environment.require_java()
    jars = list(delta_jars({}))
    print_text(f"jars for Delta: {len(jars)}, below {jars[0].parent}")
    archives = [class_archive.place(installed_home(), jars)]
    commands = [[sys.executable, "-m", "spark_ext.commands.prepare"]]
    if storage is not None:
        from spark_ext.spark.session.object_stores import s3_jars

        more = s3_jars({})
        print_text(f"jars for S3: {len(more)}, below {more[0].parent}")
        archives.append(class_archive.place(installed_home(), [*jars, *more]))
        commands.append([*commands[0], storage.value])
    for archive, command in zip(archives, commands, strict=True):
        if archive.is_file() and not again:
            print_text(f"class archive: exists, {_size(archive)}")
            continue
        problem = class_archive.make(archive, command)
        print_text(
            f"class archive: not created, sessions start without it: {problem}"
            if problem
            else f"class archive: created, {_size(archive)}: {archive}"
        )


def _size(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:.0f} MB"


def warm_up(storage: str | None = None) -> None:
    """Run a short job that uses what most jobs use, in a temporary folder, so that the JVM loads these classes."""
    from pyspark.sql import functions as F

    import spark_ext as sx

    assert storage in (None, "s3")
    with TemporaryDirectory(prefix="spark-ext-warm-up-") as folder:
        place = Path(folder)
        spark = sx.session(
            "warm-up", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"}, storage="s3" if storage else None
        )
        # A source belongs to one query.
        copied, counted, left, right = (
            sx.with_watermark(spark.readStream.format("datagen").options(uid=uid, rows=200).load(), "ts", "1 minute")
            for uid in ("copied", "counted", "left", "right")
        )
        frames = {
            "copy": copied,
            "counts": counted.groupBy(F.window("ts", "1 minute"), "key").count(),
            "joined": left.select("key", "ts", "seq").join(right.select("key", "ts"), ["key", "ts"], "left_outer"),
        }
        job = sx.Job(spark, "warm-up", state=place / "state")
        for uid, frame in frames.items():
            writer = frame.writeStream.format("delta_2pc")
            job.add(uid, writer.option("uid", f"{uid}-table").option("path", str(place / uid)))
        job.run(progress=False)
        spark.read.format("delta").load(str(place / "copy")).groupBy("key").count().collect()
        job.ledger.epochs().count()
        spark.stop()


if __name__ == "__main__":
    warm_up(*sys.argv[1:])
