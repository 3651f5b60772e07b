"""Incidents: their types, which of them are open, and who is notified. Knows neither jobs nor the ledger."""
