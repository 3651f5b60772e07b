"""Benchmarks: each figure is a ratio of two sides, measured alternately in one run. See `docs/benchmarks.md`."""
