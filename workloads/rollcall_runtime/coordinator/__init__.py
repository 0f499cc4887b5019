"""The coordinator on trainer rank 0: membership, weight versions, prompts and completions."""
