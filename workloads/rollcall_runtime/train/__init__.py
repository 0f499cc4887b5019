"""The learning side of a trainer: engines, losses, batches, the asynchronous loop."""
