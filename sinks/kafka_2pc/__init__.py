"""The sink `kafka_2pc`: staged messages, one transaction per epoch, and the topic of epochs."""
