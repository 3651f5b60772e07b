"""Watching queries that run: what Spark does for them, stalls, and queries that somebody else has started."""
