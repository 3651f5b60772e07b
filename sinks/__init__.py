"""Sinks: `contract.py` is what an author reads, `runtime/` stands between it and Spark, the rest is one sink each."""
