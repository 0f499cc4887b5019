"""A job's report: one HTML file with its figures, epochs, sessions, events and spec."""
