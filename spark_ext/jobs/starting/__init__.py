"""The start of a job: its definition compared with the ledger, then claims, hooks and Spark's starts."""
