"""One of four rollouts lies beside other faults, in a job of real processes on this machine.

`python -m hack.liar --help` lists its options; `make liar` runs it.
"""
