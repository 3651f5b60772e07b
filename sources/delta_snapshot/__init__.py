"""The source `delta_snapshot`: one version of a Delta table."""
