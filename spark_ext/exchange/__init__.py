"""Exchanges: durable data between the queries of a job. `contract.py` is what a kind of exchange implements."""
