"""What a job on one machine costs a user: waits from a command to its effect."""
