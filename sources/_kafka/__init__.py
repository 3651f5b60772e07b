"""Bounds and reading of `kafka_range`."""
