"""Benches that are no tests: each prints what it measured, and says in its help how to run it."""
