"""The log of a Delta table, as `delta_2pc` and the outbox of `http_2pc` commit to it."""
