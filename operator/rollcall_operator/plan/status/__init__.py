"""What is written back for people: status, conditions, events."""
