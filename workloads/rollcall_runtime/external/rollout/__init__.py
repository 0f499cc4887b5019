"""The agent's process beside a program that joins as a rollout, for the library `rollcall`."""
