"""The README's commands on a machine that has nothing: `make fresh`.

A minimal Debian root is made, entered with namespaces of its own, and given a clone of the
committed tree. What passes there needs no program, library or file of this machine.
"""
