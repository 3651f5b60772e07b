"""Waiting for a condition, with a limit: the same function that the contract kit offers to users."""

from __future__ import annotations

from spark_ext.testing.waiting import until as until
