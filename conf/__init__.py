"""What a user edits: Spark's defaults, logging, and the settings of jobs. Shipped as package data."""
