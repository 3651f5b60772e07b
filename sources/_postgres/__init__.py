"""Ranges, the snapshot and the increments of the source `postgres`."""
