"""The suite that every training engine must pass; docs/training.md says how to run it on yours."""
