"""Which pods may be members of a job, and which are deleted."""
