"""Benchmarks: each figure is a ratio of two sides that were measured in turns in one run. See `docs/benchmarks.md`."""
