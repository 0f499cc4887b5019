"""Metrics, logs and probes of the operator."""
