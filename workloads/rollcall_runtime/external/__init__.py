"""The coordinator's process beside a trainer of the user's own, for the library `rollcall`."""
