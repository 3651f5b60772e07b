"""What the sources and sinks of one system share: options, connections, and the conversion of its errors."""
