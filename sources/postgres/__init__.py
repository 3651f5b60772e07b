"""The source `postgres`: a snapshot in key ranges, then increments."""
