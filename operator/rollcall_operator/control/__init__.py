"""The moving parts: queue, observe, apply, coordinator links and the Lease."""
