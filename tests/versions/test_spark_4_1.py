"""Jobs on Spark 4.1."""

import pytest

from tests.versions.matrix import check_jobs_on


@pytest.mark.slow(350, "makes an environment, and runs the tests of jobs in it")
@pytest.mark.timeout(1800)
def test_jobs_on_spark_4_1() -> None:
    check_jobs_on("4.1")
