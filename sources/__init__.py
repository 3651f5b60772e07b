"""Sources: `contract.py` is what an author reads, `runtime/` stands between it and Spark, the rest is one source each.

`staged.py` is for sources that take over from one another.
"""
