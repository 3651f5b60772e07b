"""What the PostgreSQL source and sink share: options, connections, names, and the conversion of its errors."""
