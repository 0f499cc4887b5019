"""What the library `rollcall` costs a trainer of one's own: see `__main__`."""
