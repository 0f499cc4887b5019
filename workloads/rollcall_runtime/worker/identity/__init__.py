"""Who speaks: tokens of pods, their check without the API server, and what each role may do."""
