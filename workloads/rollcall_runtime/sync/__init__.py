"""The weight-sync data plane: engines behind one interface, staging, catch-up of newcomers."""
