"""What a job needs of memory for its weights, by estimate.

The trainer keeps weights and gradients in fp32 and two moments of AdamW (docs/training.md), and one
copy of the weights while it is sent. A rollout keeps the weights that it serves and those that it
receives. Activations, caches and Python itself come on top.
"""

from dataclasses import dataclass

WEIGHT = GRADIENT = 4  # bytes of a parameter
MOMENTS = 8
SNAPSHOT = RECEIVED = 4
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of all trainer ranks together, and of one rollout."""

    parameters: int
    trainer: int
    rollout: int
    rollouts: int = 0

    @property
    def whole(self) -> int:
        """Of all processes of the job."""
        return self.trainer + self.rollout * self.rollouts

    def sentence(self) -> str:
        """How it is made up."""
        text = (
            f"weights, gradients and AdamW's moments of {self.parameters:,} parameters need "
            f"{size(self.trainer)} in the trainer by estimate"
        )
        if self.rollouts:
            text += f", and {size(self.rollout)} in each of {self.rollouts} rollouts"
        return f"{text}; activations and Python itself come on top"


def estimate(parameters: int, *, adapters_only: bool, rollouts: int) -> MemoryEstimate:
    """Of a model of so many parameters; `adapters_only`: low-rank adapters alone are trained."""
    trained = 0 if adapters_only else GRADIENT + MOMENTS
    sent = SNAPSHOT if rollouts else 0
    return MemoryEstimate(
        parameters=parameters,
        trainer=parameters * (WEIGHT + trained + sent),
        rollout=parameters * (WEIGHT + RECEIVED),
        rollouts=rollouts,
    )


def size(number: float) -> str:
    """Bytes for people."""
    return f"{number / _GIB:.1f} GiB" if number >= _GIB / 10 else f"{number / (1 << 20):.1f} MiB"
