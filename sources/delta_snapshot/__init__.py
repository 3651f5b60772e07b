"""The source `delta_snapshot`: one version of a Delta table, and what later versions add or change."""
