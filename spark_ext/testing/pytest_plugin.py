"""Loaded by pytest as the entry point `spark_ext`: the kit's assertions say what differs, as those of a test do."""

import pytest

pytest.register_assert_rewrite(
    "spark_ext.testing.exchange_contract",
    "spark_ext.testing.exchange_driver",
    "spark_ext.testing.sink_contract",
    "spark_ext.testing.sink_queries",
    "spark_ext.testing.source_contract",
    "spark_ext.testing.source_queries",
)
