"""The source `kafka_range`: ranges of topic partitions between given bounds."""
