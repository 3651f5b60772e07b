"""Only the two halves of the door to Spark use py4j and what pyspark does not document."""

import ast
from pathlib import Path

import pytest

from tools.private_names import HALVES, LISTED, OWNERS, private_names, used
from tools.rules import File, read

FILES = read(Path(__file__).parents[2])


def test_no_other_file_uses_a_private_name() -> None:
    assert {file.path.partition("/")[0] for file in FILES} == {"spark_ext", "sources", "sinks", "listeners"}
    assert list(private_names(FILES)) == []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("from py4j.protocol import Py4JError", "py4j.protocol.Py4JError"), ("import py4j", "py4j"),
        ("import pyspark.worker", "pyspark.worker"), ("from pyspark import cloudpickle", "pyspark.cloudpickle"),
        ("from pyspark.sql.pandas.types import to_arrow_type", "pyspark.sql.pandas.types.to_arrow_type"),
        ("from pyspark.sql.types import _parse_datatype_string", "pyspark.sql.types._parse_datatype_string"),
        ("from pyspark.worker import read_udfs", "pyspark.worker.read_udfs"),
        ("from pyspark.sql.streaming.state import _state", "pyspark.sql.streaming.state._state"),
        ("from pyspark.sql.streaming import state", "pyspark.sql.streaming.state"), ("spark._sc", "spark._sc"),
        ("df._jdf.schema()", "df._jdf"), ("frame._show_string()", "frame._show_string"),
        ("getattr(spark, '_jvm')", "'_jvm'"), ("sys.modules['pyspark.worker_util']", "'pyspark.worker_util'"),
        ("class Mine(StreamingQueryListener):\n    def _jlistener(self): ...", "_jlistener"),
    ],
)  # fmt: skip
def test_each_kind_of_use_is_found(code: str, name: str) -> None:
    for path in ("spark_ext/jobs/job.py", "sources/files.py", "sinks/files_2pc.py", "listeners/mail.py"):
        (found,) = private_names([File(path, ast.parse(code), 1)])
        assert found.startswith(f"{path}:") and f": uses {name}:" in found


@pytest.mark.parametrize(
    "code",
    [
        "from pyspark.sql import DataFrame, functions as F",
        "from pyspark.sql.streaming.query import StreamingQuery",
        "import os\nos._exit(1)",
        "self._jvm = 1\nself._jvm",
        "other._source\nself._source = 1",
        "'a text about pyspark.worker'",
    ],
)
def test_what_is_documented_or_our_own_is_no_use(code: str) -> None:
    assert not list(private_names([File("spark_ext/jobs/job.py", ast.parse(code), 1)]))


def test_the_list_has_all_that_the_two_halves_use() -> None:
    halves = [file for file in FILES if file.path.startswith(HALVES) and not file.path.endswith("/private_names.py")]
    found = {name.strip("'") for _, _, name in used(halves) if not name.startswith("py4j.")}
    assert not {name for name in found if name not in OWNERS and name.rpartition(".")[2] not in LISTED}
