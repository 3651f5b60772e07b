"""Requests to a running job: control events in the ledger, which the planners of its sources read."""
