"""`spark-ext prepare`: fetches and makes, once, what sessions on this machine need to start fast; for images too."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from spark_ext.commands.output import print_text


class Store(str, Enum):
    """Object stores whose Hadoop file system can be fetched."""

    S3 = "s3"


StorageOption = Annotated[Store | None, typer.Option(help="Also fetch Hadoop's file system for this store.")]


def prepare(
    storage: StorageOption = None,
    again: Annotated[bool, typer.Option("--again", help="Make the class archive even if it is there.")] = False,
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
    commands = [[sys.executable, "-m", "spark_ext.commands.warm_up"]]
    if storage is not None:
        from spark_ext.spark.session.object_stores import s3_jars

        more = s3_jars({})
        print_text(f"jars for S3: {len(more)}, below {more[0].parent}")
        archives.append(class_archive.place(installed_home(), [*jars, *more]))
        commands.append([*commands[0], storage.value])
    for archive, command in zip(archives, commands, strict=True):
        if archive.is_file() and not again:
            print_text(f"class archive: was there, {_size(archive)}")
            continue
        problem = class_archive.make(archive, command)
        print_text(
            f"class archive: not made, sessions start without: {problem}"
            if problem
            else f"class archive: made, {_size(archive)}: {archive}"
        )


def _size(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:.0f} MB"
