"""Runs Python that a model wrote: without network, files of others, processes or much time."""
