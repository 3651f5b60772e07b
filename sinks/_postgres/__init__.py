"""Types, COPY, the record of epochs and the commit of `postgres_2pc`."""
