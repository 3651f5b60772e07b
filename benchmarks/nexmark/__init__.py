"""Nexmark to the end of its input, beside plain Spark and Flink, undisturbed and under kills."""
