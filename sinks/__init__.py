"""Sinks: `contract.py` is what an author reads, `runtime/` the bridge to Spark, each other module one sink."""
