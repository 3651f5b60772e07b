"""Restore from a savepoint, rescale, and savepoints of a job that does not run."""
