"""Status, conditions and events: what the operator writes for people."""
