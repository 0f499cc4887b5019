"""Training engines that a job may choose instead of the core's fsdp2, one folder each."""
