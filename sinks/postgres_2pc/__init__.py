"""The sink `postgres_2pc`: COPY into staging, one transaction per epoch, and the record of epochs."""
