"""Ways for agents and other clients to use the rollouts that train, one folder each."""
