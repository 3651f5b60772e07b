"""Checkpoints of a running job: periodic and aligned ones, savepoints, and the final checkpoint of a query."""
