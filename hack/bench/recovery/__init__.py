"""How fast a job on the local cluster recovers: trials of each fault, and of the naive policy."""
