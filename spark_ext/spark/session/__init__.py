"""Spark sessions that are ready for jobs: environment, jars, settings, and the registry of sources and sinks."""
