"""What the front adds to a response's latency."""
