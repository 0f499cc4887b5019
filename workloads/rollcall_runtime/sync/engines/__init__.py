"""The transports, each in its own file."""
