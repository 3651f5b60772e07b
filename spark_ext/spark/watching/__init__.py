"""What a running Spark application says of itself: stacks, times, workers, events and failures."""
