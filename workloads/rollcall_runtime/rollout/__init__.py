"""What runs in a rollout pod: inference engines and the agent around them."""
