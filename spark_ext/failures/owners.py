"""To whom the code of a frame belongs, by its file or class. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Final

from spark_ext.failures.evidence import Owner

_SPARK_FILES: Final = re.compile(r"(?:^|[/\\])(?:pyspark|py4j)(?:[/\\]|\.zip|-[\d.]+-src\.zip)")
_OWN_FILES: Final = re.compile(r"[/\\]spark_ext[/\\]")
_ADDED_FILES: Final = re.compile(r"[/\\]userFiles-[^/\\]+[/\\]|[/\\]ipykernel_\d+[/\\]")
_PACKAGES: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\](?P<package>[^/\\]+?)(?:\.py)?(?:[/\\]|$)")
_COMPILED: Final = re.compile(r"\.p(?:yx|xi|xd)$")  # sources of compiled packages, whose paths begin with the package
_STANDARD_FILES: Final = re.compile(
    r"^<frozen |[/\\](?:lib|Lib)(?:64)?[/\\]python3[^/\\]*[/\\]|[/\\]python3\d+\.zip[/\\]"
)

_STANDARD_CLASSES: Final = ("java.", "javax.", "jdk.", "sun.", "com.sun.", "scala.", "kotlin.")
_SPARK_CLASSES: Final = (
    "org.apache.spark.",
    "org.sparkproject.",
    "py4j.",
    # What Spark is made of: nobody else calls it in Spark's processes, except a connector.
    *("org.apache.hadoop.", "org.apache.parquet.", "org.apache.orc.", "org.apache.avro.", "org.apache.arrow."),
    *("org.apache.hive.", "org.apache.commons.", "org.rocksdb.", "org.codehaus.", "org.json4s."),
    *("com.fasterxml.", "com.esotericsoftware.", "com.univocity.", "com.twitter.", "io.netty.", "net.jpountz."),
    *("org.xerial.", "com.github.luben.", "net.razorvine."),
)
_LIBRARIES_IN_SPARK: Final = ("org.apache.spark.sql.delta.", "org.apache.spark.sql.kafka010.")
"""Connectors whose packages lie within Spark's."""
_LIBRARY_CLASSES: Final = (
    *("org.apache.", "io.delta.", "com.google.", "com.amazonaws.", "software.amazon.", "com.azure."),
    *("com.databricks.", "io.confluent.", "org.postgresql.", "com.mysql.", "org.slf4j.", "org.eclipse."),
    *("org.glassfish.",),
)


_COMPILED_PACKAGES: Final = frozenset(
    (
        *("MySQLdb", "_mssql", "_mysql_connector", "adbc_driver_manager", "hdbcli", "ibm_db", "ibm_db_dbi", "psycopg2"),
        *("pymssql", "pyodbc", "turbodbc", "_duckdb", "duckdb", "apsw", "lmdb", "plyvel", "rocksdict"),
        *("_pulsar", "cimpl", "zmq", "_internal", "deltalake", "polars", "pydantic_core", "shapely"),
        *("ciso8601", "lxml", "msgspec", "orjson", "rapidjson", "ujson"),
        *("_brotli", "brotli", "lz4", "snappy", "zstandard"),
    )
)  # packages whose compiled code raises exceptions of their own without having frames


def is_compiled(kind: str) -> bool:
    """Whether an exception of this class comes from a compiled package, although no frame shows it."""
    return kind.partition(".")[0] in _COMPILED_PACKAGES


def owner_of_file(path: str, user_packages: Collection[str] = ()) -> Owner:
    """The owner of a Python file."""
    if _ADDED_FILES.search(path):
        return Owner.USER
    package = _PACKAGES.search(path)
    if package is not None and package["package"] in user_packages:
        return Owner.USER
    if _SPARK_FILES.search(path):
        return Owner.SPARK
    if _OWN_FILES.search(path):
        return Owner.SPARK_EXT
    if package is not None or _COMPILED.search(path):
        return Owner.USER if path.partition("/")[0] in user_packages else Owner.LIBRARY
    return Owner.STANDARD if _STANDARD_FILES.search(path) else Owner.USER


def owner_of_function(path: str, name: str, user_packages: Collection[str] = ()) -> Owner:
    """The owner of a function in a traceback; `six` compiles `raise_from` from a string, without a file."""
    if (path, name) == ("<string>", "raise_from"):
        return Owner.LIBRARY
    return owner_of_file(path, user_packages)


def owner_of_class(name: str, is_users: Callable[[str], bool] = lambda name: True) -> Owner:
    """The owner of a Java class.

    Args:
        is_users: whether a class of no known library is the user's.
    """
    plain = name.rpartition("/")[2]
    if plain.startswith(_LIBRARIES_IN_SPARK):
        return Owner.LIBRARY
    if plain.startswith(_SPARK_CLASSES) or "GeneratedClass" in plain:
        return Owner.SPARK
    if plain.startswith(_STANDARD_CLASSES):
        return Owner.STANDARD
    if plain.startswith(_LIBRARY_CLASSES) or "." not in plain.partition("$")[0]:
        return Owner.LIBRARY
    return Owner.USER if is_users(plain) else Owner.LIBRARY
