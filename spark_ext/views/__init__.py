"""What a user sees of a job: the live line, the notebook display, its status, its timeline."""
