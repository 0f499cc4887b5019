"""The objects that the operator creates for a job, and the settings of their workers."""
