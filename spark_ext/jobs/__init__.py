"""A job: its queries, their supervision on the driver, the final checkpoint, and what came of it."""
