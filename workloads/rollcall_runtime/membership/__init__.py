"""One member of a sync group: its stream to the coordinator, its liveness and its state machine."""
