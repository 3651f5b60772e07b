"""Sinks: `contract` is the one contract, each other module is one sink on it."""
