"""Waiting for a condition, with a limit: the same function that the contract kit offers to users."""

from spark_ext.testing.waiting import until as until
