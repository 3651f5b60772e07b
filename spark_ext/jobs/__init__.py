"""A job: what a user holds, its start, its coordinator and its result."""
