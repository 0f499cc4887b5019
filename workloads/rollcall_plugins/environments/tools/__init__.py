"""The environment `tools`: functions that the model calls in its responses."""
