"""The log of a Delta table: fenced commits, features, and the failures of storage."""
