"""How much the operator costs with many jobs, on a real control plane with simulated nodes."""
