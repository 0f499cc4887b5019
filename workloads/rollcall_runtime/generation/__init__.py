"""Asks rollouts for responses: which serve, which one a request goes to, who continues it."""
