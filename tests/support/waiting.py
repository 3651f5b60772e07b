"""Waiting for a condition, with a limit: as users of the kit have it."""

from __future__ import annotations

from spark_ext.testing.waiting import until as until
