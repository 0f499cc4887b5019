"""A reference in pods of its own: what a pod serves, and how trainer ranks ask for it."""
