"""Checkpoints of a job. The final checkpoint takes a query's last steps."""
