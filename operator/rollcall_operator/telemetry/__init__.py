"""What the operator says about itself: metrics, logs and probes."""
