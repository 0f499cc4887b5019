"""Built-in tasks: prompts and verifiable rewards."""
