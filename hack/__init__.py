"""Programs for developers: the local cluster, the demo, the soak and the benches. No tests."""
