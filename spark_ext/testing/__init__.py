"""Helpers with which users test their own sources, sinks and jobs."""
