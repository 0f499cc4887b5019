"""One module for each step, run as a program with the device's type as its argument.

`cpu` runs the same with doubles of the device, so that the first run on a device fails for its own
reasons alone.
"""
