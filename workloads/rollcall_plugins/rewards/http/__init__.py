"""The reward `http`: a service of the user's own scores the response."""
