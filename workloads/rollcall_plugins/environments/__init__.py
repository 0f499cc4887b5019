"""Environments that a job names instead of a class of its own, one folder each."""
