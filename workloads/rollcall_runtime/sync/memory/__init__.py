"""Buffers in host memory and on devices."""
