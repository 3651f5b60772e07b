"""The outbox, the chunks and the client of `http_2pc`."""
