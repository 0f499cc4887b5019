"""Jobs of other trainers, as RLJobs."""
