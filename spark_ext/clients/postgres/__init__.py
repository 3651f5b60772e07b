"""What the PostgreSQL source and sink share: where the server is, kept connections, and what its errors mean."""
