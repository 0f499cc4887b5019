"""Responses that a step trained on, recorded for people to look at."""
