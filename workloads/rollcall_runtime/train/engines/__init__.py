"""The core's training engine, fsdp2, and what all engines share."""
