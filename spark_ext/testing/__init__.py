"""Helpers for testing your own sources, sinks and jobs."""
