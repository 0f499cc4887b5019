"""Checkpoints: when they are saved, how their files lie, and which trainer may write them."""
