"""The sink `http_2pc`: an outbox of requests, and the client that sends them."""
