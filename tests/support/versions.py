"""Marks of tests by what the installed version of Spark has."""

import pyspark.sql.functions
import pytest

from spark_ext.spark.capabilities import capabilities

_HAS = capabilities(pyspark.__version__)

needs_delta = pytest.mark.skipif(not _HAS.delta, reason="no Delta is for this Spark yet")
of_4_2 = pytest.mark.skipif(not pyspark.__version__.startswith("4.2."), reason="it compares with a table for Spark 4.2")
needs_rescale = pytest.mark.skipif(not _HAS.rescale, reason="this Spark cannot distribute state over other partitions")
needs_arrow_functions = pytest.mark.skipif(
    not hasattr(pyspark.sql.functions, "arrow_udf"), reason="this Spark has no functions over Arrow arrays"
)
