"""What links the queries of a job: exchanges, and queries that start after others have finished."""
