"""What sources and sinks of one system share: options, connections, its errors as ours."""
