"""Updates of vLLM's weights: pauses, faults, lost requests, log-probabilities, tokens a second."""
