"""Supervised training, on any engine: the plug-in `supervised` of `rollcall.trainers`."""
