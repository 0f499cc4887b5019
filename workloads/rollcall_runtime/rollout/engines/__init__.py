"""The built-in inference engine."""
