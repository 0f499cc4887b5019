"""The local cluster that demonstrations and tests run on: kind, or what a test needs of it.

`python -m hack.cluster --help` lists the commands.
"""
