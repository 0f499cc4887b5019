"""The contract between operator and workloads: messages, state machines, prompts, environment.

Standard library only, no I/O, no clock, so that the operator, the workers and the exhaustive model
share one definition.
"""

__version__ = "0.1.0"
