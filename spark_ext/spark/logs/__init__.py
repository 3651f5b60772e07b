"""Spark's own files of a query: its logs, its checkpoint directory and its state stores."""
