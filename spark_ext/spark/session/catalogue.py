"""Where the Delta tables are that a session's catalogues know by name: asked with SQL, as any catalogue answers it.

A job resolves a name once, when its query is added, and from then on knows the table by its location.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from spark_ext.errors import ConfigurationError, refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_KEPT: Final = "nothing was started; the job's state is as it was"
_PART: Final = r"(?:\w+|`(?:[^`]|``)+`)"
_NAME: Final = re.compile(rf"{_PART}(?:\.{_PART})*")
_DETAILS: Final = "# Detailed Table Information"  # facts about the table follow this row of DESCRIBE
_CATALOGUE: Final = (
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog and "
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"
)


def table_path(spark: SparkSession, name: str) -> str:
    """The location of a Delta table that a catalogue of the session knows, for the option `path` of a source.

    Args:
        name: as SQL has it: `daily`, `sales.daily`, `main.sales.daily`; unusual names in backticks. What is left out is
            the session's current catalogue and schema.

    Returns:
        A local path, or a URI.

    Raises:
        ConfigurationError: the table does not exist, is a view, is not a Delta table, or has no location.
    """
    return resolve(spark, name, f"table {name}")


def resolve(spark: SparkSession, name: str, who: str, schema: StructType | None = None) -> str:
    """The location of a Delta table that a catalogue of the session knows.

    With the schema of the rows that are to be written to it, an error has the statement that would create it.
    """
    from pyspark.errors import PySparkException

    if not _NAME.fullmatch(name):
        raise refused(
            f"'{name}' is not the name of a table",
            who,
            "write it as in SQL, such as main.sales.daily, with unusual names in backticks; a location is the option "
            "'path'",
            kept=_KEPT,
        )
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except PySparkException as problem:
        raise _unknown(problem, name, who, schema) from problem
    found = details(rows)
    kind, provider = found.get("Type", ""), found.get("Provider", "")
    if "VIEW" in kind.upper() or "View Text" in found:
        raise refused(f"'{name}' is a view", who, "name the table", kept=_KEPT)
    if provider.lower() != "delta":
        shown = f"has the provider '{provider}'" if provider else "is a temporary view, or has no provider"
        raise refused(f"'{name}' is no Delta table: it {shown}", who, "name a Delta table", kept=_KEPT)
    location = found.get("Location", "")
    if not location:
        raise refused(
            f"the catalogue does not say where the table '{name}' is",
            who,
            "find its location with DESCRIBE DETAIL, and give it as the option 'path'",
            kept=_KEPT,
        )
    return local(location)


def _unknown(problem: Any, name: str, who: str, schema: StructType | None) -> ConfigurationError:
    condition = problem.getCondition() or ""
    if "NOT_FOUND" not in condition:
        said = str(problem).partition("\n")[0]
        return refused(f"the table '{name}' cannot be looked up: {said}", who, "correct its name", kept=_KEPT)
    if schema is None:
        return refused(f"table '{name}' is not in the session's catalogues", who, "correct its name", kept=_KEPT)
    columns = ", ".join(f"{_quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)
    return refused(
        f"table '{name}' is not in the session's catalogues, and a job does not create one by name",
        who,
        f'create it first: spark.sql("CREATE TABLE {name} ({columns}) USING delta"), in a session with {_CATALOGUE}; '
        "or give its location as the option 'path', at which it is then created",
        kept=_KEPT,
    )


def _quoted(column: str) -> str:
    return column if re.fullmatch(r"\w+", column) else "`" + column.replace("`", "``") + "`"


def details(rows: Iterable[Any]) -> dict[str, str]:
    """What `DESCRIBE TABLE EXTENDED` says about a table itself, by name; its columns are left out."""
    found: dict[str, str] = {}
    begun = False
    for name, value, _ in rows:
        if begun and name:
            found.setdefault(name, value or "")
        begun = begun or name == _DETAILS
    return found


def local(location: str) -> str:
    """A location without the scheme `file:`, as a path; other URIs as they are. Spark shows them unquoted."""
    for prefix in ("file://", "file:"):
        if location.startswith(prefix):
            return location.removeprefix(prefix)
    return location
