"""Metrics of a running job: a catalogue, counters from the rows of its ledger, and ways to export them."""
