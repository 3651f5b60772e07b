"""The REST server of control events: stateless over the ledgers of one or several jobs."""
