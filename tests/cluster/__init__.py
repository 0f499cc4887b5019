"""The local cluster that demonstrations and tests run on: kind, or the parts of it that a test needs.

`python -m tests.cluster --help` lists the commands.
"""
