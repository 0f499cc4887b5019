"""Tasks: where prompts come from, and the reward functions that score responses."""
