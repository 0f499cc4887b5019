"""Pure planning: what a job should have, computed from what is observed. No I/O, no clock."""
