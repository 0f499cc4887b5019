"""Rewards that a job names instead of a function of its own, one folder each."""
