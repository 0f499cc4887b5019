"""A training engine of another distribution: Granite models on megatron-core."""
