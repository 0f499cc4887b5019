"""A model as one flat buffer: snapshots, stages, shards, deltas, catching up."""
