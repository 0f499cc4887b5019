"""The Rollcall operator: custom resources in, pods, epochs and status out."""
