"""One query of a job: its specification, its run, its epochs and its failures."""
