"""An inference server in processes of its own beside the agent: start and end, and calls of it."""
