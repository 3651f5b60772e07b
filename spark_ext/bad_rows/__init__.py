"""Bad rows of sources: collected by tasks, and moved into a Delta table once their epoch is committed."""
