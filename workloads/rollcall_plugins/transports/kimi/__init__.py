"""Engine `kimi`: checkpoint-engine's P2P reads to each node, then a broadcast in the node."""
