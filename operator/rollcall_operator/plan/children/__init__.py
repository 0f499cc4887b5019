"""The objects that a job gets: trainer, rollouts, and what their workers are told."""
