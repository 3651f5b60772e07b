"""The pure centre: offsets, end of input, life cycle, checkpoint metadata. No clock, no file, no Spark."""
