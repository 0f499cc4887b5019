"""Pure planning: what a job should have, computed from what is observed. No I/O, no clock."""

from rollcall_operator.plan.job import make_plan

__all__ = ["make_plan"]
