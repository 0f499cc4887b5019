"""Real processes on loopback, one address each: a job without a cluster."""
