"""The local cluster that demonstrations and tests run on: kind, or what a test needs of it.

`python -m tests.cluster --help` lists the commands.
"""
