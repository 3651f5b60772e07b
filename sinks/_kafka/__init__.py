"""Staging, the transactional producer and the topic of epochs of `kafka_2pc`."""
