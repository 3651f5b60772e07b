"""Each condition of Spark's and of Delta's, as an analyzer and as a task raise it.

The conditions are those of the installed jars. What is right is said in `conditions.yaml`, mostly by SQLSTATE.
"""

import fnmatch
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from spark_ext.failures.classifier import Classifier
from spark_ext.failures.evidence import Evidence, Frame, Link, Owner, Raised
from tests.support.versions import of_4_2

pytestmark = of_4_2

SAID: dict[str, dict[str, list[str]]] = yaml.safe_load(Path(__file__).with_name("conditions.yaml").read_text())
STATES = {state: type for type, states in SAID["states"].items() for state in states}
NAMES = {name: type for type, names in SAID["conditions"].items() for name in names}
ENTRIES = ("error/error-conditions.json", "error/delta-error-classes.json")

BY_USER = (
    Frame(Owner.SPARK, "/venv/pyspark/errors/exceptions/captured.py", 257, "deco"),
    Frame(Owner.USER, "/home/me/shop.py", 12, "write"),
    Frame(Owner.SPARK, "/venv/pyspark/sql/utils.py", 163, "call"),
)
ANALYZER = (Frame(Owner.SPARK, "x.scala", 1, "org.apache.spark.sql.catalyst.analysis.CheckAnalysis.checkAnalysis"),)
TASK = (Frame(Owner.SPARK, "x.scala", 1, "org.apache.spark.scheduler.Task.run"),)


@dataclass(frozen=True)
class Condition:
    name: str
    state: str
    message: str

    @property
    def analyzed(self) -> Evidence:
        """Raised by a call in a function for batches of the user's."""
        kind = "org.apache.spark.sql.AnalysisException"
        outer = Raised("pyspark.errors.exceptions.captured.AnalysisException", self.message, frames=BY_USER, by="raise")
        inner = Raised(kind, self.message, Link.CAUSE, ANALYZER, condition=self.name, sqlstate=self.state)
        return Evidence((outer, inner))

    @property
    def executed(self) -> Evidence:
        outer = Raised("org.apache.spark.SparkException", "Job aborted due to stage failure")
        kind = "org.apache.spark.SparkRuntimeException"
        return Evidence((outer, Raised(kind, self.message, Link.CAUSE, TASK, (), self.name, self.state)))

    @property
    def types(self) -> tuple[str, str]:
        named = NAMES.get(self.name) or NAMES.get(self.name.partition(".")[0])
        both = named or STATES.get(self.state) or STATES[self.state[:2]]
        one, _, other = both.partition("/")
        return one, other or one


def conditions() -> Iterator[Condition]:
    jars = [*(Path(pyspark.__file__).parent / "jars").glob("spark-common-utils_*.jar")]
    jars += sorted((Path.home()).glob(".ivy2*/jars/*delta-spark_*.jar"))[-1:]
    for jar in jars:
        with zipfile.ZipFile(jar) as file:
            for entry in set(ENTRIES) & set(file.namelist()):
                yield from _within(json.loads(file.read(entry)))


def _within(given: dict[str, Any]) -> Iterator[Condition]:
    for name, one in given.items():
        for below, further in (one.get("subClass") or {"": {"message": []}}).items():
            words = " ".join([*one["message"], *further["message"]])
            full = f"{name}.{below}" if below else name
            yield Condition(full, one.get("sqlState", ""), f"[{full}] {words}")


ALL = list(conditions())


def test_every_condition_with_a_state_is_what_it_is_said_to_be() -> None:
    judge = Classifier().judge
    found = {one: (judge(one.analyzed).type.value, judge(one.executed).type.value) for one in ALL if one.state}
    wrong = [
        f"{one.name} ({one.state}): {types}, not {one.types}" for one, types in found.items() if types != one.types
    ]
    assert len(found) > 1_000
    assert not wrong, "\n".join(wrong)


def test_the_table_names_conditions_that_exist() -> None:
    known = {one.name for one in ALL} | {one.name.partition(".")[0] for one in ALL}
    if not any(name.startswith("DELTA_") for name in known):
        pytest.skip("Delta's jar is not here")
    assert not set(NAMES) - known


@pytest.mark.parametrize(
    "pattern",
    ["DELTA_FILE_NOT_FOUND*", "DELTA_CONCURRENT_*", "DELTA_*CONSTRAINT*VIOLATE*", "DATATYPE_*", "CAST_*", "*GROUP_BY"],
)
def test_what_is_common_is_known_without_its_state(pattern: str) -> None:
    """Of Delta's conditions pyspark shows none; of others a text may have lost it."""
    judge = Classifier().judge
    found = [one for one in ALL if fnmatch.fnmatchcase(one.name, pattern)]
    for one in found:
        assert (judge(Condition(one.name, "", one.message).executed).type.value,) * 2 == one.types, one.name
