"""The C libraries of accelerators, by ctypes."""
