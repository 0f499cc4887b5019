"""Trainer rank 0's coordinator: membership, weight-sync rounds, prompts and completions."""
