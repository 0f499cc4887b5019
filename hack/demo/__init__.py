"""`make demo`: from a machine with nothing to a job that learned while rollouts came and went."""
