"""How what a job costs grows with its queries, its input and its history."""
