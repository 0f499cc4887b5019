"""What users read, kept as text: `kubectl explain`, conditions, events, metrics.

The texts are rendered from the code that writes them, by scenarios that a planner goes through.
`python -m tests.golden` rewrites the files; review their diff as you would review a page of docs.
"""
