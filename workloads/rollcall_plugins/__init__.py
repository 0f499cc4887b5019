"""Optional parts of the runtime, each found by an entry point."""
