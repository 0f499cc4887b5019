"""A seeded soak of a job on the local cluster: faults by plan, and a verdict over what was seen.

`python -m hack.soak --help` lists its options; `make chaos` runs it.
"""
