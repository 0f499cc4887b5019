"""vLLM under updates, kills and newcomers: pauses, faults, lost requests, times, bytes."""
