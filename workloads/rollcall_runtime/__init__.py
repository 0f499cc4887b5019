"""What runs in the worker pods: trainer, coordinator, rollouts and weight sync."""
